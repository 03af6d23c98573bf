"""A job file with every default: its own keys, the values of flags, and the keys that it leaves out."""

from __future__ import annotations

from typing import Any, cast

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.job import ValidationReport

Table = dict[str, Any]


def complete_file(report: ValidationReport, resolved: Table) -> Table:
    """Return the tables of a file that resolves to the same job, whatever the defaults of a later version are.

    resolved: the job, whose values take precedence over this version's defaults. A default that follows from other keys
    is not written.
    """
    file = _without_nulls(report.data)
    for path, value in report.replaced.items():
        table, key = _place(file, path)
        table.pop(key, None)
        if value is not None:
            table[key] = value
    for field, (path, default) in report.defaults.items():
        # A value that the job has in another form stays as in the file.
        same = value_at(report.values, field) == default
        table, key = _place(file, path)
        table.setdefault(key, value_at(resolved, field) if same else default)
    return _without_nulls(file)


def value_at(values: Table, field: str) -> Any:
    """Return a value of a job by its dotted name; None if the job does not have it."""
    value: Any = values
    for part in field.split("."):
        value = cast(Table, value).get(part) if isinstance(value, dict) else None
    return value


def _place(file: Table, path: Path) -> tuple[Table, str]:
    """Return the table of a key, and the key's name in it."""
    *tables, key = map(str, path)
    for table in tables:
        file = file.setdefault(table, {})
    return file, key


def _without_nulls(table: Table) -> Table:
    """Return a copy without nulls, which TOML does not have, and without empty tables."""
    kept: Table = {}
    for key, value in table.items():
        # Tables that are passed on unchanged are kept unchanged.
        if isinstance(value, dict) and key not in ("env_config", "grader", "tags"):
            value = _without_nulls(cast(Table, value))
        if value is not None and value != {}:
            kept[key] = value
    return kept

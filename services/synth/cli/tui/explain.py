"""A resolved job as a table: each setting, its value, its origin, and why it differs from the requested value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from synth.cli.tui.tables.rows import Rows
from synth.errors import Problem
from synth.jobs.resolve.job import ValidationReport

_MOST_ITEMS = 6
_LONGEST_NAME = 14


@dataclass(frozen=True)
class Setting:
    """One setting. origin: the place in the file, a flag, "registry" or "default". why: "" if it is as requested.

    key: the name of the key that sets it; the field's own name if none does.
    """

    field: str
    key: str
    value: Any
    origin: str
    why: str


class CheckReport(msgspec.Struct, kw_only=True):
    """The outcome of `config check` for one file. kind: None if it is unknown; summary: "" with problems."""

    file: str
    kind: str | None = None
    problems: list[Problem] = []
    warnings: list[str] = []
    summary: str = ""


def settings_of(found: ValidationReport) -> list[Setting]:
    """Return every setting of a job file without problems, in the job's own order."""
    return [
        Setting(field, found.keys.get(field, field), value, found.origins[field], found.changed.get(field, ""))
        for field, value in _fields(found.values, "", found.origins)
    ]


def summary(found: ValidationReport) -> str:
    """Return the job of a good file, in one line."""
    job = found.job
    if job is not None:
        what = job.summary()
    else:
        v = found.values
        source = v["db"] or (f"the traces of {', '.join(v['jobs'])}" if v["jobs"] else "all traces")
        what = f"filter of {source} into {v['output']}: `synthctl filter` runs it"
    warnings = len(found.warnings)
    return f"{what}; {warnings} warning{'s' * (warnings > 1)}" if warnings else what


def _fields(values: dict[str, Any], prefix: str, origins: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        field = prefix + key
        if field in origins:
            yield field, value
        elif isinstance(value, dict):
            yield from _fields(cast(dict[str, Any], value), f"{field}.", origins)


def format_value(value: Any) -> str:
    """Return a value as short text; long lists and sets of seeds by their first and last item."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return _list(list(cast(list[Any], value)))
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        if set(table) == {"start", "count", "listed"}:
            return _list(table["listed"]) if table["listed"] else _range(table["start"], table["count"])
        return ", ".join(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in table.items()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _list(values: list[Any]) -> str:
    whole = all(isinstance(v, int) for v in values)
    if len(values) > _MOST_ITEMS and whole and values == list(range(values[0], values[0] + len(values))):
        return _range(values[0], len(values))
    if len(values) > _MOST_ITEMS:
        return f"{', '.join(map(str, values[:3]))} … {values[-1]} ({len(values)})"
    return ", ".join(map(str, values))


def _range(start: int, count: int) -> str:
    return f"{start} … {start + count - 1} ({count})"


class SettingsTable:
    """Draws the settings for a terminal of any width; a `*` marks a value that differs from the requested one."""

    def __init__(self, settings: list[Setting], file: str) -> None:
        self._settings = settings
        self._file = file

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[list[Text]] = []
        for setting in self._settings:
            set_by_user = setting.origin not in ("default", "registry")
            value = Text(format_value(setting.value))
            if setting.why:
                value.append(" *", style="yellow")
            key = Text(setting.key, style="" if set_by_user else "dim")
            rows.append([key, value, Text(self._place(setting.origin), style="cyan" if set_by_user else "dim")])
        yield Rows(("setting", "value", "from"), rows, wrap="value")
        for setting in self._settings:
            if setting.why:
                yield Text("* ", style="yellow").append(f"{setting.field}: {setting.why}", style="default")

    def _place(self, origin: str) -> str:
        """`rl.toml:14`, or `line 14` of a file with a long name."""
        if not origin.startswith(self._file):
            return origin
        line = origin[len(self._file) :].partition(" ")[0].lstrip(":")
        name = Path(self._file).name
        return f"{name}:{line}" if len(name) <= _LONGEST_NAME else f"line {line}"

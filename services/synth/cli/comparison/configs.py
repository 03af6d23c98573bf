"""The differences between configurations of jobs, by the names of a job file. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from synth.api.schemas import JobWithConfig
from synth.cli.jobs.resolved import job_tables
from synth.errors import NewerVersion, UserError

#: Tables that are one value: a job's sets of seeds.
_SEEDS = {"start", "count", "listed"}


@dataclass(frozen=True)
class Difference:
    """One setting that is not the same in all jobs. values: by job, None for a job without the setting.

    key: as `[table].key` of a job file.
    """

    key: str
    values: list[Any]


def settings_of(jobs: Sequence[JobWithConfig]) -> list[dict[str, Any]]:
    """Return the settings of jobs as tables of job files; as resolved if this version cannot read one of the files."""
    try:
        return [job_tables(job) or {} for job in jobs]
    except (NewerVersion, UserError, msgspec.ValidationError):
        return [job.resolved or {} for job in jobs]


def differences(configs: Sequence[dict[str, Any]]) -> list[Difference]:
    """Return the settings that differ, in the order of the first configuration that has each.

    A setting that one job does not have and another has as null is the same.
    """
    flat = [{_name(key): value for key, value in flatten(config).items()} for config in configs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [Difference(key, [settings.get(key) for settings in flat]) for key in keys]
    return [row for row in rows if any(value != row.values[0] for value in row.values[1:])]


def _name(key: str) -> str:
    table, _, name = key.rpartition(".")
    return f"[{table}].{name}" if table else name


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a configuration by their dotted keys."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and set(cast(dict[str, Any], value)) != _SEEDS:
            settings |= flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            settings[prefix + key] = value
    return settings

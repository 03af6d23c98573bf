"""What differs between the resolved configurations of jobs. Pure functions of what the API answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

#: Tables that are one value: a job's sets of seeds.
_SEEDS = {"start", "count", "listed"}


@dataclass(frozen=True)
class Difference:
    """One setting that is not the same in all jobs. key: dotted. values: by job, None where a job does not have it."""

    key: str
    values: list[Any]


def differences(configs: Sequence[dict[str, Any]]) -> list[Difference]:
    """The settings that differ, in the order of the first configuration that has each.

    A setting that one job does not have and another has as null is the same.
    """
    flat = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [Difference(key, [settings.get(key) for settings in flat]) for key in keys]
    return [row for row in rows if any(value != row.values[0] for value in row.values[1:])]


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of a configuration by their dotted keys."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and set(cast(dict[str, Any], value)) != _SEEDS:
            settings |= flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            settings[prefix + key] = value
    return settings

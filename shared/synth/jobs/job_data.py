"""A resolved job as plain data, which events carry."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from synth.errors import NewerVersion
from synth.jobs.resolved import Job


def job_to_data(job: Job) -> dict[str, Any]:
    """Convert a job to JSON data, its kind included."""
    return msgspec.to_builtins(job)


def job_from_data(data: dict[str, Any]) -> Job:
    """Read the result of `job_to_data`.

    Raises `NewerVersion` for a setting that this version does not have: a job must not run without it. Raises
    msgspec.ValidationError on anything else.
    """
    job = msgspec.convert(data, Job)
    unread = _unread(data, msgspec.to_builtins(job))
    if unread:
        raise NewerVersion(f"this version has no setting {', '.join(unread)}, which the job was validated with")
    return job


def _unread(data: Any, read: Any, place: str = "") -> list[str]:
    """Return the places of the keys in `data` that `read`, the job parsed from it, does not have."""
    if isinstance(data, dict) and isinstance(read, dict):
        values, known = cast(dict[str, Any], data), cast(dict[str, Any], read)
        places = {key: f"{place}.{key}" if place else key for key in values}
        lists = [_unread(values[key], known[key], places[key]) if key in known else [places[key]] for key in values]
    elif isinstance(data, list | tuple) and isinstance(read, list | tuple):
        pairs = zip(cast(list[Any], data), cast(list[Any], read), strict=False)
        lists = [_unread(item, known, f"{place}[{n}]") for n, (item, known) in enumerate(pairs)]
    else:
        return []
    return [missing for places in lists for missing in places]

"""Jobs with every default applied: the body of `job.validated`, which the services read.

Nothing of a job decides anything: a field that is None is off.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from synth.errors import NewerVersion
from synth.methods.dpo import DpoJob
from synth.methods.eval import EvalJob
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob

TrainedJob = SftJob | DpoJob | RlJob
Job = TrainedJob | EvalJob


class ResolvedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, the origin of each of its values, and the changes and warnings.

    origins: by the job's fields, dotted (`rollout.sampling.top_p`): the place in the file (`rl.toml:14 [lora].r`), the
    flag (`--seed`), "registry" or "default".
    """

    job: Job
    origins: dict[str, str]
    warnings: list[str]


def job_to_data(job: Job) -> dict[str, Any]:
    """Convert a job to JSON data, its kind included."""
    return msgspec.to_builtins(job)


def job_from_data(data: dict[str, Any]) -> Job:
    """Read the result of `job_to_data`.

    Raises `NewerVersion` for a setting that this version does not have: a job must not run without it. Raises
    msgspec.ValidationError on anything else.
    """
    # On the wire a DPO job is of kind "sft", as in versions that had one class for both.
    job: Job = msgspec.convert(data, DpoJob if data.get("dpo") is not None else SftJob | RlJob | EvalJob)
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

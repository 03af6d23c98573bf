"""What an organisation has, counted for its limits."""

from __future__ import annotations

from typing import NamedTuple

from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables import device_time
from synth.jobs.lifecycle import State

_QUEUED = (State.CREATED, State.VALIDATED, State.VERIFIED)


class JobCounts(NamedTuple):
    """Jobs that have not ended, and those of them that nobody has started."""

    live: int
    queued: int


def count_jobs(model: ReadModel, org: str) -> JobCounts:
    """Count an organisation's jobs."""
    queued = ", ".join("?" for _ in _QUEUED)
    counts = f"SELECT COUNT(*), COALESCE(SUM(state IN ({queued})), 0) FROM jobs WHERE live AND org = ?"
    return JobCounts(*model.db.execute(counts, (*_QUEUED, org)).fetchone())


def stored_bytes(model: ReadModel, org: str) -> int:
    """Return the bytes of an organisation's files, as they were uploaded, and of the stored logs of its jobs."""
    files = "SELECT COALESCE(SUM(json_extract(CAST(row AS TEXT), '$.file.bytes')), 0) FROM files WHERE org = ?"
    logs = "SELECT COALESCE(SUM(json_extract(CAST(row AS TEXT), '$.log_bytes')), 0) FROM jobs WHERE org = ?"
    return sum(model.db.execute(total, (org,)).fetchone()[0] for total in (files, logs))


def pending_files(model: ReadModel, org: str) -> int:
    """How many of an organisation's files nobody has checked yet."""
    status = "json_extract(CAST(row AS TEXT), '$.file.status')"
    count = f"SELECT COUNT(*) FROM files WHERE org = ? AND {status} = 'processing'"
    return model.db.execute(count, (org,)).fetchone()[0]


def gpu_seconds(model: ReadModel, org: str, *, now: float, days: int) -> float:
    """`device_time.device_seconds`: devices × seconds that an organisation's jobs have held. now: Unix time."""
    return device_time.device_seconds(model.db, org, now=now, days=days)


def orgs_with_devices(model: ReadModel) -> list[str]:
    """The organisations whose jobs hold devices now."""
    return device_time.holding_orgs(model.db)

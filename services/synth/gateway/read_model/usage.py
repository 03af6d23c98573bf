"""The counts of an organisation's stored items and running jobs, for its limits."""

from __future__ import annotations

from typing import NamedTuple

from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables import device_time, org_totals
from synth.jobs.lifecycle import State

_QUEUED = (State.CREATED, State.VALIDATED, State.VERIFIED)


class JobCounts(NamedTuple):
    """The numbers of jobs that have not ended, and of jobs among them that have not started."""

    live: int
    queued: int


def count_jobs(model: ReadModel, org: str) -> JobCounts:
    """Count an organisation's jobs."""
    queued = ", ".join("?" for _ in _QUEUED)
    counts = f"SELECT COUNT(*), COALESCE(SUM(state IN ({queued})), 0) FROM jobs WHERE live AND org = ?"
    return JobCounts(*model.db.execute(counts, (*_QUEUED, org)).fetchone())


def stored_bytes(model: ReadModel, org: str) -> int:
    """Call `org_totals.stored_bytes`: return the bytes of an organisation's files and of its jobs' stored logs."""
    return org_totals.stored_bytes(model.db, org)


def event_bytes(model: ReadModel, org: str) -> int:
    """Call `org_totals.event_bytes`: return the bytes of an organisation's events in the log."""
    return org_totals.event_bytes(model.db, org)


def count_unvalidated(model: ReadModel, org: str) -> int:
    """Count an organisation's jobs that the validator has not decided on."""
    query = "SELECT COUNT(*) FROM jobs WHERE live AND org = ? AND state = ?"
    return model.db.execute(query, (org, State.CREATED)).fetchone()[0]


def pending_files(model: ReadModel, org: str) -> int:
    """Call `org_totals.pending_files`: count an organisation's files that are not checked yet."""
    return org_totals.pending_files(model.db, org)


def gpu_seconds(model: ReadModel, org: str, *, now: float, days: int) -> float:
    """Call `device_time.device_seconds`: return the devices × seconds of an organisation's jobs. now: Unix time."""
    return device_time.device_seconds(model.db, org, now=now, days=days)


def orgs_with_devices(model: ReadModel) -> list[str]:
    """Return the organisations whose jobs hold devices now."""
    return device_time.holding_orgs(model.db)

"""The counts of an organisation's running jobs, for its limits."""

from __future__ import annotations

from typing import NamedTuple

from synth.gateway.read_model.store import ReadModel
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


def count_unvalidated(model: ReadModel, org: str) -> int:
    """Count an organisation's jobs that the validator has not decided on."""
    query = "SELECT COUNT(*) FROM jobs WHERE live AND org = ? AND state = ?"
    return model.db.execute(query, (org, State.CREATED)).fetchone()[0]

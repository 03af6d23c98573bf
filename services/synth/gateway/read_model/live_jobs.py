"""All live jobs, however many there are, while requests are answered, and the places of those that wait."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Container
from datetime import datetime

import msgspec

from synth.api.schemas import Job, Waiting
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import State

#: The states in which a job may wait for a service.
WAITING = frozenset({State.CREATED, State.VALIDATED, State.VERIFIED})
#: Rows that are read at one time: a few milliseconds.
_PAGE = 128
_READ = "SELECT created, org, state, row FROM jobs WHERE live AND created > ? ORDER BY created LIMIT ?"


async def live_jobs(
    model: ReadModel, *, states: Container[str] | None = None, orgs: Container[str] | None = None
) -> AsyncIterator[list[JobRow]]:
    """Jobs that have not ended, oldest first, in pages. states, orgs: only those; None: all.

    Each job is as it was when its page was read, and other work of the event loop is done between two pages.
    """
    after = 0
    while True:
        # What is not wanted is read too, and not decoded: a page costs the same whatever is in it.
        found = model.db.execute(_READ, (after, _PAGE)).fetchall()
        yield [
            msgspec.json.decode(row, type=JobRow)
            for _, org, state, row in found
            if (orgs is None or org in orgs) and (states is None or state in states)
        ]
        if len(found) < _PAGE:
            return
        after = found[-1][0]
        await asyncio.sleep(0)


def missing_service(row: JobRow) -> str | None:
    """The service that a job waits for; None when somebody owns it."""
    match row.job.state:
        case State.CREATED:
            return "validator"
        case State.VALIDATED:
            return "verifier"
        case State.VERIFIED if row.job.kind == "sft":
            return "trainer"
        case State.VERIFIED if not row.policy_loaded:
            return "inference"
        case State.VERIFIED:
            return "rollouts" if row.job.kind == "eval" else "trainer"
        case _:
            return None


class JobQueue:
    """The jobs that wait, by the service that they wait for, in the order in which they began to.

    They are read again and again (`update`), as no request may read all of them.
    """

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._read = False
        self._places: dict[str, tuple[str, int]] = {}
        self._lengths: dict[str, int] = {}

    async def update(self, model: ReadModel) -> None:
        """Read the jobs that wait now."""
        waiting: defaultdict[str, list[tuple[datetime, str]]] = defaultdict(list)
        async for page in live_jobs(model, states=WAITING):
            for row in page:
                if need := missing_service(row):
                    waiting[need].append((row.state_since, row.job.id))
        self._lengths = {need: len(jobs) for need, jobs in waiting.items()}
        self._places = {id: (need, n) for need, jobs in waiting.items() for n, (_, id) in enumerate(sorted(jobs), 1)}
        self._read = True

    def check(self) -> str | None:
        """Return why places are not known yet; None when they are."""
        return None if self._read else "the queue of jobs is not read yet"

    def place(self, row: JobRow) -> Waiting | None:
        """What a job waits for; None for one that does not wait. One that has just begun to is the last of all."""
        need = missing_service(row)
        if need is None:
            return None
        known, position = self._places.get(row.job.id, ("", 0))
        if known != need:
            position = self._lengths.get(need, 0) + 1
        return Waiting(need=need, pool=self.pool, position=position, since=row.state_since)

    def show(self, row: JobRow) -> Job:
        """The job with its place."""
        waiting = self.place(row)
        return row.job if waiting is None else msgspec.structs.replace(row.job, waiting=waiting)

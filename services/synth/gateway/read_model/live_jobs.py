"""All live jobs, read in pages between requests, and the places of waiting jobs in the queue."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Container

import msgspec

from synth.api.schemas import Job, Waiting
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import State

#: The states in which a job may wait for a service.
WAITING = frozenset({State.CREATED, State.VALIDATED, State.VERIFIED})
#: Rows that are read at a time, which takes a few milliseconds.
_PAGE = 128
_READ = "SELECT created, org, state, row FROM jobs WHERE live AND created > ? ORDER BY created LIMIT ?"


async def live_jobs(
    model: ReadModel, *, states: Container[str] | None = None, orgs: Container[str] | None = None
) -> AsyncIterator[list[JobRow]]:
    """Yield jobs that have not ended, oldest first, in pages. states, orgs: only jobs of these; None: all.

    Each job has the state at the read of its page, and other work of the event loop runs between two pages.
    """
    after = 0
    while True:
        # Rows that do not match are read but not decoded, so every page costs about the same.
        result = model.db.execute(_READ, (after, _PAGE)).fetchall()
        yield [
            msgspec.json.decode(row, type=JobRow)
            for _, org, state, row in result
            if (orgs is None or org in orgs) and (states is None or state in states)
        ]
        if len(result) < _PAGE:
            return
        after = result[-1][0]
        await asyncio.sleep(0)


def missing_service(row: JobRow) -> str | None:
    """Return the service that a job waits for; None if it has an owner."""
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


def _held_services(row: JobRow) -> list[str]:
    """Return the services in which a live job has a place."""
    held = ["inference"] if row.policy_loaded else []
    if row.job.state not in WAITING and row.job.state is not State.PAUSED:
        held.append("rollouts" if row.job.kind == "eval" else "trainer")
    return held


class JobQueue:
    """The jobs that wait, by the service that they wait for, in the order in which workers take them.

    A worker takes the task whose organisation has the fewest places (`synth.bus.tasks.choice`). So a job is behind the
    older jobs whose organisations will have no more places than its own at their turn. The jobs are read at intervals
    (`update`), because no request may read all of them.
    """

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._read = False
        self._places: dict[str, tuple[str, int]] = {}
        self._turns: dict[str, list[int]] = {}
        self._next_turns: Counter[tuple[str, str]] = Counter()

    async def update(self, model: ReadModel) -> None:
        """Read the waiting jobs, and the places of the running jobs."""
        waiting: defaultdict[str, list[JobRow]] = defaultdict(list)
        turns: Counter[tuple[str, str]] = Counter()
        async for page in live_jobs(model):
            for row in page:
                if need := missing_service(row):
                    waiting[need].append(row)
                turns.update((service, row.org) for service in _held_services(row))
        self._places, self._turns = {}, {}
        for need, rows in waiting.items():
            order: list[tuple[int, str]] = []
            for row in sorted(rows, key=lambda row: (row.state_since, row.job.id)):
                order.append((turns[need, row.org], row.job.id))
                turns[need, row.org] += 1
            order.sort(key=lambda turn: turn[0])
            self._places |= {id: (need, n) for n, (_, id) in enumerate(order, 1)}
            self._turns[need] = [turn for turn, _ in order]
        self._next_turns = turns
        self._read = True

    def check(self) -> str | None:
        """Return why places are not known yet; None if they are known."""
        return None if self._read else "the queue of jobs is not read yet"

    def place(self, row: JobRow) -> Waiting | None:
        """Return a job's place in the queue; None if it does not wait. A new job is its organisation's last."""
        need = missing_service(row)
        if need is None:
            return None
        known, position = self._places.get(row.job.id, ("", 0))
        if known != need:
            position = bisect_right(self._turns.get(need, []), self._next_turns[need, row.org]) + 1
        return Waiting(need=need, pool=self.pool, position=position, since=row.state_since)

    def show(self, row: JobRow) -> Job:
        """Return the job with its place."""
        waiting = self.place(row)
        return row.job if waiting is None else msgspec.structs.replace(row.job, waiting=waiting)

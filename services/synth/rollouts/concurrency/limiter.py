"""The slots at a job's task app: a semaphore by priority, whose limit may change while slots are in use.

Invariants. A free slot goes to the waiter of the lowest priority, not to the oldest one: an earlier iteration is never
overtaken, its retries and refills included. A limit that falls takes no slot away; it is reached as rollouts end.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

Priority = tuple[int, int]
"""The priority of a rollout in its job, the lowest first: its request's priority, and its index in the request."""


@dataclass(frozen=True)
class Occupancy:
    """The use of the slots up to `at`. slot_s: slot-seconds in use. busy_s: seconds with at least one in use."""

    at: float
    slot_s: float
    busy_s: float


class PriorityLimiter:
    """A semaphore whose waiters have priorities and whose limit can be set."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        self.in_use = 0
        self._occupancy = Occupancy(time.monotonic(), 0.0, 0.0)

    @property
    def full(self) -> bool:
        """Whether one more would have to wait."""
        return self.in_use >= self._limit

    def resize(self, limit: int) -> None:
        """Set the limit, at least 1."""
        self._limit = limit
        self._admit()

    def occupancy(self) -> Occupancy:
        """Return the use up to now; the difference of two readings is the use between them."""
        self._change_in_use(0)
        return self._occupancy

    @asynccontextmanager
    async def acquire(self, priority: Priority) -> AsyncGenerator[None]:
        """Hold a slot while the block runs."""
        await self._wait_for_slot(priority)
        try:
            yield
        finally:
            self._change_in_use(-1)
            self._admit()

    async def _wait_for_slot(self, priority: Priority) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._arrivals), admitted))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            # The waiter may have got a slot in the same iteration of the event loop that cancelled it.
            if not admitted.cancelled():
                self._change_in_use(-1)
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and not self.full:
            _, _, admitted = heapq.heappop(self._waiting)
            if not admitted.done():
                self._change_in_use(1)
                admitted.set_result(None)

    def _change_in_use(self, change: int) -> None:
        now, occupancy = time.monotonic(), self._occupancy
        seconds = now - occupancy.at
        self._occupancy = Occupancy(
            now, occupancy.slot_s + seconds * self.in_use, occupancy.busy_s + seconds * (self.in_use > 0)
        )
        self.in_use += change


def mean_in_use(before: Occupancy, after: Occupancy) -> float:
    """Return how many slots were in use on average between two readings."""
    return (after.slot_s - before.slot_s) / max(1e-9, after.at - before.at)


def busy_share(before: Occupancy, after: Occupancy) -> float:
    """Return the share of the time between two readings in which a slot was in use."""
    return (after.busy_s - before.busy_s) / max(1e-9, after.at - before.at)

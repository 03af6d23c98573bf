"""The places at a job's task app: as many as its limit says, which may change while they are taken.

Invariants. A place that is free goes to whoever is first in order, not to who came first: an earlier iteration is never
overtaken, its retries and refills included. A limit that falls takes no place away; it is reached as rollouts end.
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
"""The place of a rollout in its job: that of its request, and its index in it."""


@dataclass(frozen=True)
class Occupancy:
    """What the places have been used for so far. taken_s: place-seconds; busy_s: seconds with one taken at least."""

    at: float
    slot_s: float
    busy_s: float


class PriorityLimiter:
    """A semaphore with an order and a limit that can be set."""

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
        """Set the limit, 1 and up."""
        self._limit = limit
        self._admit()

    def occupancy(self) -> Occupancy:
        """The use up to now; two readings tell what was between them."""
        self._change_in_use(0)
        return self._occupancy

    @asynccontextmanager
    async def acquire(self, priority: Priority) -> AsyncGenerator[None]:
        """Hold a place while the block runs."""
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
            # It may have been given a place in the very turn in which it was cancelled.
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
    """Places taken on average between two readings."""
    return (after.slot_s - before.slot_s) / max(1e-9, after.at - before.at)


def busy_share(before: Occupancy, after: Occupancy) -> float:
    """Share of the time between two readings in which a place was taken."""
    return (after.busy_s - before.busy_s) / max(1e-9, after.at - before.at)

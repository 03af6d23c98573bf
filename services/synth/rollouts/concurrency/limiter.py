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

Order = tuple[int, int]
"""The place of a rollout in its job: that of its request, and its index in it."""


@dataclass(frozen=True)
class Use:
    """What the places have been used for so far. taken_s: place-seconds; busy_s: seconds with one taken at least."""

    at: float
    taken_s: float
    busy_s: float


class Places:
    """A semaphore with an order and a limit that can be set."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: list[tuple[Order, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        self.taken = 0
        self._use = Use(time.monotonic(), 0.0, 0.0)

    @property
    def full(self) -> bool:
        """Whether one more would have to wait."""
        return self.taken >= self._limit

    def resize(self, limit: int) -> None:
        """Set the limit, 1 and up."""
        self._limit = limit
        self._admit()

    def use(self) -> Use:
        """The use up to now; two readings tell what was between them."""
        self._count(0)
        return self._use

    @asynccontextmanager
    async def one(self, order: Order) -> AsyncGenerator[None]:
        """Hold a place while the block runs."""
        await self._take(order)
        try:
            yield
        finally:
            self._count(-1)
            self._admit()

    async def _take(self, order: Order) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._arrivals), admitted))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            # It may have been given a place in the very turn in which it was cancelled.
            if not admitted.cancelled():
                self._count(-1)
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and not self.full:
            _, _, admitted = heapq.heappop(self._waiting)
            if not admitted.done():
                self._count(1)
                admitted.set_result(None)

    def _count(self, change: int) -> None:
        now, use = time.monotonic(), self._use
        seconds = now - use.at
        self._use = Use(now, use.taken_s + seconds * self.taken, use.busy_s + seconds * (self.taken > 0))
        self.taken += change


def mean_taken(before: Use, after: Use) -> float:
    """Places taken on average between two readings."""
    return (after.taken_s - before.taken_s) / max(1e-9, after.at - before.at)


def busy_share(before: Use, after: Use) -> float:
    """Share of the time between two readings in which a place was taken."""
    return (after.busy_s - before.busy_s) / max(1e-9, after.at - before.at)

"""The deadline of a group: a clock that runs only while every unfinished rollout of the group is at its task app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Deadline:
    """The time that the rollouts of one group have left.

    The clock runs only while every unfinished rollout of the group is at its task app. It stops while one of them waits
    for a replica, so a slow cluster makes no rollout late.
    """

    def __init__(self, rollouts: Iterable[int], timeout_s: float | None) -> None:
        """rollouts: the indices of the rollouts to run, all of them away. timeout_s: None: no limit."""
        self._away = set(rollouts)
        self._over: set[int] = set()
        self._left_s = timeout_s
        self._running_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expired = asyncio.Event()

    def mark_at_app(self, index: int) -> None:
        """Record that a rollout is at its task app now."""
        self._away.discard(index)
        self._switch_clock()

    def mark_away(self, index: int) -> None:
        """Record that a rollout waits for a replica that can serve it."""
        self._away.add(index)
        self._switch_clock()

    def mark_over(self, index: int) -> None:
        """Record that a rollout has its result, so that it can no longer be late."""
        self._over.add(index)
        self.mark_at_app(index)

    def is_over(self, index: int) -> bool:
        return index in self._over

    async def expired(self) -> None:
        """Return when no time is left."""
        await self._expired.wait()

    def close(self) -> None:
        """Stop the clock for good."""
        if self._timer is not None:
            self._timer.cancel()

    def _switch_clock(self) -> None:
        if self._left_s is None or bool(self._away) == (self._timer is None):
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._running_since = loop.time()
            self._timer = loop.call_later(self._left_s, self._expired.set)
        else:
            self._timer.cancel()
            self._timer = None
            self._left_s = max(0.0, self._left_s - (loop.time() - self._running_since))

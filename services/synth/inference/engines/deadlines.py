"""Deadlines that stand still while an engine sleeps: a request is not late because the device was another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RequestDeadline:
    """When one request has to be done. Enter `limit()` around each wait.

    at: by the event loop's clock; None while it stands still, with `left` seconds to go.
    """

    def __init__(self, at: float | None, left: float) -> None:
        self._at = at
        self._left = left
        self._running: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """A context that raises `TimeoutError` at the deadline, wherever it has moved to by then."""
        async with asyncio.timeout_at(self._at) as self._running:
            try:
                yield
            finally:
                self._running = None

    def pause(self, now: float) -> None:
        """Stand still from `now` on."""
        if self._at is not None:
            self._left = self._at - now
            self._move(None)

    def resume(self, now: float) -> None:
        """Run on at `now`."""
        if self._at is None:
            self._move(now + self._left)

    def _move(self, at: float | None) -> None:
        self._at = at
        if self._running is not None:
            self._running.reschedule(at)


class Deadlines:
    """The deadlines of one engine's requests."""

    def __init__(self) -> None:
        self._open: set[RequestDeadline] = set()
        self._paused = False

    def begin(self, seconds: float) -> RequestDeadline:
        """A deadline in so many seconds, not counting those during which the engine sleeps; `end` it."""
        now = asyncio.get_running_loop().time()
        deadline = RequestDeadline(None if self._paused else now + seconds, seconds)
        self._open.add(deadline)
        return deadline

    def end(self, deadline: RequestDeadline) -> None:
        """Forget a deadline: its request is over."""
        self._open.discard(deadline)

    def pause(self) -> None:
        """Let every deadline stand still."""
        self._paused = True
        now = asyncio.get_running_loop().time()
        for deadline in self._open:
            deadline.pause(now)

    def resume(self) -> None:
        """Let every deadline run on."""
        self._paused = False
        now = asyncio.get_running_loop().time()
        for deadline in self._open:
            deadline.resume(now)

"""Deadlines that stand still while an engine sleeps: a request is not late because the device was another's."""

from __future__ import annotations

import asyncio
from types import TracebackType


class RequestDeadline:
    """When one request has to be done, by the event loop's clock. Enter `limit()` around each wait."""

    def __init__(self, at: float | None, left: float) -> None:
        self._at = at
        self._left = left
        self._running: asyncio.Timeout | None = None

    def limit(self) -> _Limit:
        """A context that raises `TimeoutError` at the deadline, wherever it has moved to by then."""
        return _Limit(self)

    def pause(self, now: float) -> None:
        if self._at is not None:
            self._left, self._at = self._at - now, None
            if self._running is not None:
                self._running.reschedule(None)

    def resume(self, now: float) -> None:
        if self._at is None:
            self._at = now + self._left
            if self._running is not None:
                self._running.reschedule(self._at)

    def start(self) -> asyncio.Timeout:
        self._running = asyncio.timeout_at(self._at)
        return self._running

    def stop(self) -> None:
        self._running = None


class _Limit:
    def __init__(self, deadline: RequestDeadline) -> None:
        self._deadline = deadline
        self._timeout: asyncio.Timeout

    async def __aenter__(self) -> None:
        self._timeout = self._deadline.start()
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._deadline.stop()
        return await self._timeout.__aexit__(kind, error, trace)


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

"""The pace at which open event streams send past events, so that streams that are being opened go first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

#: Streams that may send a part of their past in one iteration of the event loop, if no stream is being opened.
_AT_ONCE = 8


class Pace:
    """The order of openings and past events.

    The loop accepts one connection in an iteration. If a thousand watchers connect at once and each open stream sends
    its past in every iteration, an iteration takes so long that the last watchers give up before they are answered.
    Invariant: in each iteration one waiting stream continues, so no number of openings stops the others.
    """

    def __init__(self) -> None:
        self._opening = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Count a request for a stream until its response begins."""
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    async def turn(self) -> None:
        """Wait until this stream may send a part of its past."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._schedule(loop)
        await turn

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._continue, loop)

    def _continue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        left = 1 if self._opening else _AT_ONCE
        while self._waiting and left:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                left -= 1
        self._schedule(loop)

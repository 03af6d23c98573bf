"""The memory of event streams: events that may be read again, and freed memory of ended streams."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections import deque
from collections.abc import Callable

#: The bytes of Python's objects for an event, in addition to its own bytes.
_ENTRY_BYTES = 256
#: The number of ended streams after which a collection is worthwhile.
_MANY = 100
_QUIET_S = 5.0


class StreamMemory:
    """The bytes of events that all feeds keep. Newer events replace the oldest, which remain in the log."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._kept: deque[tuple[int, Callable[[], None]]] = deque()

    def keep(self, size: int, drop: Callable[[], None]) -> None:
        """Count a kept item. drop: removes it; called after the `drop` of every earlier item."""
        self._kept.append((size + _ENTRY_BYTES, drop))
        self._total += size + _ENTRY_BYTES
        while self._total > self._limit and self._kept:
            oldest, drop_oldest = self._kept.popleft()
            self._total -= oldest
            drop_oldest()


class EndedStreams:
    """The streams that have ended since memory was last returned to the system."""

    def __init__(self) -> None:
        self._count = 0

    def note(self) -> None:
        """Count one ended stream."""
        self._count += 1

    async def return_memory(self) -> None:
        """Return memory to the system each time that many streams have ended, for ever.

        A collection frees a request's memory, and glibc keeps freed memory.
        """
        while True:
            before = self._count
            await asyncio.sleep(_QUIET_S)
            if self._count < _MANY or self._count > before:
                continue
            self._count = 0
            gc.collect()
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                await asyncio.to_thread(trim, 0)

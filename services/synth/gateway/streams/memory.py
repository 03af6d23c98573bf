"""What event streams keep in memory: events that may be read again, and what the allocator keeps of ended streams."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections import deque
from collections.abc import Callable

#: Of Python's objects for an event, beside its bytes.
_ENTRY_BYTES = 256
#: So many streams have ended before their memory is worth a collection.
_MANY = 100
_QUIET_S = 5.0


class StreamMemory:
    """Bytes of events that all feeds keep. The oldest are dropped for newer ones: whoever needs them reads the log."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._kept: deque[tuple[int, Callable[[], None]]] = deque()

    def keep(self, size: int, drop: Callable[[], None]) -> None:
        """Count what was kept just now. drop: removes it, called after `drop` of all that was kept before."""
        self._kept.append((size + _ENTRY_BYTES, drop))
        self._total += size + _ENTRY_BYTES
        while self._total > self._limit and self._kept:
            oldest, drop_oldest = self._kept.popleft()
            self._total -= oldest
            drop_oldest()


class EndedStreams:
    """Streams that have ended since their memory was returned to the system."""

    def __init__(self) -> None:
        self._count = 0

    def note(self) -> None:
        """Count one."""
        self._count += 1

    async def return_memory(self) -> None:
        """After the end of many streams, return to the system what they took, for ever.

        What a request holds is freed by a collection, and glibc keeps what is freed.
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

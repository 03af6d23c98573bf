"""The memory of event streams: events that may be read again, and freed memory of ended streams."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

#: The bytes of Python's objects for an event, in addition to its own bytes.
_ENTRY_BYTES = 256
#: The number of ended streams after which a collection is worthwhile.
_MANY = 100
_QUIET_S = 5.0


class _Kept(NamedTuple):
    """One kept item. size: bytes. drop: removes it from its feed."""

    feed: object
    size: int
    drop: Callable[[], None]


class StreamMemory:
    """The bytes of events that all feeds keep. Newer events replace the oldest, which remain in the log."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._kept: deque[_Kept] = deque()
        self._bytes: Counter[object] = Counter()
        self._items: Counter[object] = Counter()
        #: Items of feeds that have ended, which are still in the queue.
        self._ended = 0

    @property
    def total(self) -> int:
        """The bytes of the feeds that have not ended."""
        return self._total

    def keep(self, feed: object, size: int, drop: Callable[[], None]) -> None:
        """Count a kept item. drop: removes it; called after the `drop` of every earlier item."""
        self._kept.append(_Kept(feed, size + _ENTRY_BYTES, drop))
        self._count(feed, size + _ENTRY_BYTES, 1)
        while self._total > self._limit and self._kept:
            oldest = self._kept.popleft()
            if oldest.feed in self._items:
                self._count(oldest.feed, -oldest.size, -1)
                oldest.drop()
            else:
                self._ended -= 1

    def forget(self, feed: object) -> None:
        """Count no item of a feed that has ended."""
        self._ended += self._items.pop(feed, 0)
        self._total -= self._bytes.pop(feed, 0)
        # Each time, at least half of the queue goes: the cost for each item is constant.
        if 2 * self._ended > len(self._kept):
            self._kept = deque(kept for kept in self._kept if kept.feed in self._items)
            self._ended = 0

    def _count(self, feed: object, size: int, items: int) -> None:
        self._total += size
        self._bytes[feed] += size
        self._items[feed] += items
        if not self._items[feed]:
            del self._items[feed], self._bytes[feed]


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

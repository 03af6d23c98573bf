"""Numbers for a queue that serves the lowest first, so that organisations share it although it knows none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager


class FairTags:
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996) with the lowest open tag for the virtual time.

    The tags of one organisation rise, so its requests keep their order. An organisation without an open
    request begins right behind the request that is open longest, before all other queued requests.
    """

    def __init__(self) -> None:
        self._open: Counter[int] = Counter()
        self._last: dict[str, int] = {}
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, org: str) -> Generator[int]:
        """Yield the tag of a request, a positive number; the request is open meanwhile."""
        tag = max(min(self._open, default=0), self._last.get(org, 0)) + 1
        self._last[org] = tag
        self._open[tag] += 1
        self._held[org] += 1
        try:
            yield tag
        finally:
            self._open[tag] -= 1
            self._held[org] -= 1
            if not self._open[tag]:
                del self._open[tag]
            if not self._held[org]:
                del self._held[org], self._last[org]

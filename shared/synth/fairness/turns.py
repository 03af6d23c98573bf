"""Turns of organisations: the next is the one that holds least, and among equals the one served longest ago."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Organisations whose last turns are remembered. A forgotten one was served longer ago than all of them, so it still
#: comes before them.
_REMEMBERED = 10_000


class FairTurns:
    """The order of organisations at one pool, as this process knows it."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._count = 0

    def next(self, waiting: Iterable[str], held: Mapping[str, int]) -> str:
        """Return the organisation whose turn it is. waiting: at least one, the longest waiting first.

        held: how much of the pool each organisation has; 0 for a missing one.
        """
        return min(waiting, key=lambda org: (held.get(org, 0), self._served.get(org, 0)))

    def serve(self, org: str) -> None:
        """Record that an organisation has had its turn."""
        self._count += 1
        self._served.pop(org, None)
        self._served[org] = self._count
        if len(self._served) > _REMEMBERED:
            del self._served[next(iter(self._served))]

"""Whose turn it is: the organisation that holds least, and of those that hold the same the one served longest ago."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Organisations whose last turns are remembered. One that is forgotten was served longer ago than all of them, and so
#: comes before them, as it would have.
_REMEMBERED = 10_000


class FairTurns:
    """The order of organisations at one pool, as this process knows it."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._count = 0

    def next(self, waiting: Iterable[str], held: Mapping[str, int]) -> str:
        """The organisation whose turn it is. waiting: at least one, those that have waited longest first.

        held: how much of the pool each organisation has; those that are not named have nothing.
        """
        return min(waiting, key=lambda org: (held.get(org, 0), self._served.get(org, 0)))

    def serve(self, org: str) -> None:
        """It has had its turn."""
        self._count += 1
        self._served.pop(org, None)
        self._served[org] = self._count
        if len(self._served) > _REMEMBERED:
            del self._served[next(iter(self._served))]

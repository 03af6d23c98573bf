"""Items that wait for a place: organisations take turns, and the items of one of them keep their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Generic, TypeVar

from synth.fairness.turns import FairTurns

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue for each organisation; the next item is of the one that holds least. org_of: returns an item's owner."""

    def __init__(self, org_of: Callable[[T], str]) -> None:
        self._org_of = org_of
        self._queues: dict[str, deque[T]] = {}
        self._turns = FairTurns()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[T]:
        """Iterate roughly in the order of taking: over the first item of each organisation, then the second, …"""
        return (item for item in chain.from_iterable(zip_longest(*self._queues.values())) if item is not None)

    def add(self, item: T) -> None:
        """Queue an item behind the other items of its organisation."""
        self._queues.setdefault(self._org_of(item), deque()).append(item)

    def has(self, org: str) -> bool:
        """Return whether an item of this organisation waits."""
        return org in self._queues

    def next(self, held: Mapping[str, int]) -> T:
        """Return the item whose turn it is; at least one waits. held: the places of each organisation."""
        return self._queues[self._turns.next(self._queues, held)][0]

    def take(self, item: T) -> None:
        """Take an item out that was `next`: its organisation has had its turn."""
        self._turns.serve(self._org_of(item))
        self.remove(item)

    def remove(self, item: T) -> bool:
        """Take an item out. Returns whether it waited."""
        org = self._org_of(item)
        queue = self._queues.get(org, deque())
        if item not in queue:
            return False
        queue.remove(item)
        if not queue:
            del self._queues[org]
        return True

    def clear(self) -> None:
        """Take all items out."""
        self._queues.clear()

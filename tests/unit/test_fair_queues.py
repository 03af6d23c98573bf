"""Organisations share a queue by turns, also one that only knows numbers, and each keeps its order."""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import AbstractContextManager

from synth.fairness.queue import FairQueue
from synth.fairness.tags import FairTags

Item = tuple[str, int]


def filled(**counts: int) -> FairQueue[Item]:
    queue = FairQueue[Item](lambda item: item[0])
    for org, count in counts.items():
        for i in range(count):
            queue.add((org, i))
    return queue


def test_the_next_item_is_of_who_holds_least_and_each_keeps_its_order():
    queue, placed = filled(a=5, b=2), list[Item]()
    while len(queue):
        item = queue.next(Counter(org for org, _ in placed))
        queue.take(item)
        placed.append(item)
    assert placed == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 4)]


def test_who_holds_many_places_waits_for_who_holds_few():
    queue = filled(a=1, b=3)
    placed = [("a", 7)] * 2 + [("b", 7)]
    assert queue.next(Counter(org for org, _ in placed)) == ("b", 0)


def test_items_are_listed_in_rounds_and_removed_from_anywhere():
    queue = filled(a=3, b=1)
    assert [*queue] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert queue.remove(("a", 1))
    assert not queue.remove(("a", 1))
    assert not queue.remove(("c", 1))
    assert queue.remove(("b", 0))
    assert ([*queue], len(queue)) == ([("a", 0), ("a", 2)], 2)
    queue.clear()
    assert len(queue) == 0


class LowestFirst:
    """A server with places for so many, which takes the lowest tag that waits."""

    def __init__(self, places: int) -> None:
        self.tags, self.served = FairTags(), list[Item]()
        self._places = places
        self._running: list[AbstractContextManager[int]] = []
        self._waiting: list[tuple[int, int, Item, AbstractContextManager[int]]] = []
        self._arrivals = 0

    def arrive(self, org: str, number: int) -> None:
        self._arrivals += 1
        holding = self.tags.hold(org)
        heapq.heappush(self._waiting, (holding.__enter__(), self._arrivals, (org, number), holding))
        self._fill()

    def finish(self) -> None:
        """The request that runs longest ends."""
        self._running.pop(0).__exit__(None, None, None)
        self._fill()

    def _fill(self) -> None:
        while len(self._running) < self._places and self._waiting:
            _, _, item, holding = heapq.heappop(self._waiting)
            self._running.append(holding)
            self.served.append(item)


def test_a_request_of_another_organisation_does_not_wait_for_all_that_one_has_queued():
    server = LowestFirst(places=4)
    for i in range(100):
        server.arrive("a", i)
    for _ in range(10):
        server.finish()
    for i in range(10):
        server.arrive("b", i)
    for _ in range(8):
        server.finish()
    assert [org for org, _ in server.served[14:]].count("b") >= 4
    for _ in range(92):
        server.finish()
    for org in ("a", "b"):
        numbers = [number for each, number in server.served if each == org]
        assert numbers == sorted(numbers)
    assert len(server.served) == 110


def test_what_ended_leaves_nothing_behind():
    tags = FairTags()
    with tags.hold("a") as first, tags.hold("a") as second, tags.hold("b") as other:
        assert first < second
        assert other <= second
    with tags.hold("c") as tag:
        assert tag == 1
    assert vars(tags)["_last"] == {}

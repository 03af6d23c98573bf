"""Seeds: how a job file names them, and which ones an iteration draws."""

from __future__ import annotations

import functools
import random
import re
from typing import Any, cast

import msgspec

#: Of a larger range no more is shuffled than is drawn: all of it would not fit into memory.
_SHUFFLED_WHOLE = 1_000_000
#: JSON has no whole numbers beyond it that every reader understands.
_LARGEST = 2**53 - 1
_RANGE = re.compile(r"\s*(\d{1,18})\s*-\s*(\d{1,18})\s*")


class Seeds(msgspec.Struct, frozen=True, kw_only=True):
    """A set of environment seeds: the listed ones, or `count` of them from `start`.

    A range stays a range: it may be any number of seeds in a job's config that travels in an event.
    """

    start: int = 0
    count: int = 0
    listed: list[int] = []

    def __len__(self) -> int:
        return len(self.listed) or self.count

    def shared_with(self, others: set[int]) -> set[int]:
        """Return the seeds that are both in `others` and in this set."""
        within = range(self.start, self.start + self.count)
        return others.intersection(self.listed) if self.listed else {seed for seed in others if seed in within}

    def first(self, count: int | None = None) -> list[int]:
        """Return the first `count` seeds, in order; None: all of them."""
        return list((self.listed or range(self.start, self.start + self.count))[:count])


def parse_seeds(value: Any) -> Seeds:
    """Parse seeds given as a list `[1, 2]`, a text `"0-99"` (both ends included) or a table `{start, count}`.

    Raises ValueError whose text names the expected form.
    """
    if isinstance(value, Seeds):
        return value
    if isinstance(value, list):
        return _listed(cast(list[Any], value))
    if isinstance(value, str):
        match = _RANGE.fullmatch(value)
        if not match or int(match[2]) < int(match[1]):
            raise ValueError('a range such as "0-99", first and last seed, both included')
        return _range(int(match[1]), int(match[2]) - int(match[1]) + 1)
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        start, count = table.get("start", 0), table.get("count")
        if set(table) <= {"start", "count"} and _is_seed(start) and _is_seed(count) and count:
            return _range(start, count)
        raise ValueError("a table {start = 0, count = 100} of whole numbers, with a count of at least 1")
    raise ValueError('a list of whole numbers, a range such as "0-99", or {start = 0, count = 100}')


def draw(seeds: Seeds, *, job_seed: int, iteration: int, batch: int) -> list[int]:
    """Return the seeds of training iteration `iteration` (from 1): `batch` of them, without repeats within an epoch.

    A pure function, so that a resumed trainer draws the same seeds as the attempt before it. Each pass over the set has
    a new order.
    """
    size = len(seeds)
    first = (iteration - 1) * batch
    drawn: list[int] = []
    for position in range(first, first + batch):
        index = _order(size, job_seed, position // size)[position % size]
        drawn.append(seeds.listed[index] if seeds.listed else seeds.start + index)
    return drawn


@functools.lru_cache(maxsize=4)
def _order(size: int, job_seed: int, epoch: int) -> list[int] | _LazyShuffle:
    seeded = random.Random(f"{job_seed}:{epoch}")
    if size > _SHUFFLED_WHOLE:
        return _LazyShuffle(size, seeded)
    order = list(range(size))
    seeded.shuffle(order)
    return order


class _LazyShuffle:
    """A range in shuffled order, by Fisher and Yates from its beginning; it is shuffled only as far as it is read."""

    def __init__(self, size: int, seeded: random.Random) -> None:
        self._size = size
        self._seeded = seeded
        self._drawn: list[int] = []
        self._moved: dict[int, int] = {}  # position -> number, for positions whose number has changed

    def __getitem__(self, position: int) -> int:
        while len(self._drawn) <= position:
            here = len(self._drawn)
            there = self._seeded.randrange(here, self._size)
            self._drawn.append(self._moved.get(there, there))
            self._moved[there] = self._moved.get(here, here)
            self._moved.pop(here, None)
        return self._drawn[position]


def _listed(values: list[Any]) -> Seeds:
    if not values or not all(_is_seed(v) for v in values):
        raise ValueError("at least one seed, each a whole number of 0 or more")
    if len(set(values)) != len(values):
        raise ValueError("each seed once: this list repeats some")
    return Seeds(listed=values)


def _range(start: int, count: int) -> Seeds:
    if start + count - 1 > _LARGEST:
        raise ValueError(f"seeds of at most {_LARGEST}, this range ends at {start + count - 1}")
    return Seeds(start=start, count=count)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST

"""Seeds: how a job file names them, and which ones an iteration draws."""

from __future__ import annotations

import functools
import random
import re
from typing import Any, cast

import msgspec

MAX_SEEDS = 1_000_000
_RANGE = re.compile(r"\s*(\d{1,18})\s*-\s*(\d{1,18})\s*")


class Seeds(msgspec.Struct, frozen=True, kw_only=True):
    """A set of environment seeds: the listed ones, or `count` of them from `start`.

    A range stays a range: it may be a million seeds in a job's config that travels in an event.
    """

    start: int = 0
    count: int = 0
    listed: list[int] = []

    def __len__(self) -> int:
        return len(self.listed) or self.count

    def values(self) -> list[int]:
        """Every seed, in order."""
        return list(self.listed) or list(range(self.start, self.start + self.count))


def parse_seeds(value: Any) -> Seeds:
    """Seeds as a list `[1, 2]`, a text `"0-99"` (both ends in) or a table `{start, count}`.

    Raises ValueError with what was expected.
    """
    if isinstance(value, Seeds):
        return value
    if isinstance(value, list):
        return _listed(cast(list[Any], value))
    if isinstance(value, str):
        found = _RANGE.fullmatch(value)
        if not found or int(found[2]) < int(found[1]):
            raise ValueError('a range such as "0-99", first and last seed, both of them in')
        return _range(int(found[1]), int(found[2]) - int(found[1]) + 1)
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        start, count = table.get("start", 0), table.get("count")
        if set(table) <= {"start", "count"} and _is_seed(start) and _is_seed(count) and count:
            return _range(start, count)
        raise ValueError("a table {start = 0, count = 100} of whole numbers, with a count of at least 1")
    raise ValueError('a list of whole numbers, a range such as "0-99", or {start = 0, count = 100}')


def draw(seeds: Seeds, *, job_seed: int, iteration: int, batch: int) -> list[int]:
    """The seeds of training iteration `iteration` (from 1): `batch` of them, without repeats within an epoch.

    A pure function, so that a resumed trainer asks for what the dead one asked for. Each pass over the set
    is shuffled anew.
    """
    size = len(seeds)
    first = (iteration - 1) * batch
    drawn: list[int] = []
    for position in range(first, first + batch):
        index = _order(size, job_seed, position // size)[position % size]
        drawn.append(seeds.listed[index] if seeds.listed else seeds.start + index)
    return drawn


@functools.lru_cache(maxsize=4)
def _order(size: int, job_seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{job_seed}:{epoch}").shuffle(order)
    return order


def _listed(values: list[Any]) -> Seeds:
    if not values or not all(_is_seed(v) for v in values):
        raise ValueError("at least one seed, each a whole number of 0 or more")
    if len(set(values)) != len(values):
        raise ValueError("each seed once: this list repeats some")
    return Seeds(listed=values)


def _range(start: int, count: int) -> Seeds:
    if count > MAX_SEEDS:
        raise ValueError(f"at most {MAX_SEEDS:,} seeds, this range has {count:,}")
    return Seeds(start=start, count=count)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53

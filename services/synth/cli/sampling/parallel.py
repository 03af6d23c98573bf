"""A function over many items, so many at a time, with the results in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_order(function: Callable[[_Item], _Result], items: Iterable[_Item], *, at_once: int) -> Iterator[_Result]:
    """Yield the result of each item. Memory is bounded by `at_once`; an error ends the iteration."""
    rest = iter(items)
    with ThreadPoolExecutor(at_once) as pool:
        while window := [*islice(rest, 8 * at_once)]:
            yield from pool.map(function, window)

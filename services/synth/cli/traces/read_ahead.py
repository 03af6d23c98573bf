"""Read many objects from the backend, with some requests under way at one time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from synth.runtime.startup import build_struct_types

#: Requests under way at one time, and traces that are held while an earlier one is awaited.
_AT_ONCE = 8
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def ahead(items: Iterable[_Item], read: Callable[[_Item], _Found]) -> Iterator[tuple[_Item, _Found]]:
    """Yield each item with what `read` returns for it, in their order; some are read ahead, in threads."""
    build_struct_types()
    waiting: deque[tuple[_Item, Future[_Found]]] = deque()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(read, item)))
                if len(waiting) == _AT_ONCE:
                    first, found = waiting.popleft()
                    yield first, found.result()
            while waiting:
                first, found = waiting.popleft()
                yield first, found.result()
        finally:
            for _, found in waiting:
                found.cancel()

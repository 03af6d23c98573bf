"""Traces from the backend: pages of them, and many whole ones with some requests under way at one time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

from synth.api.limits import MAX_PAGE
from synth.api.traces import TraceDetail, TracePage, TraceSummary
from synth.cli.api.client import Client
from synth.runtime.startup import build_struct_types

#: Requests under way at one time, and traces that are held while an earlier one is awaited.
_AT_ONCE = 8
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def list_traces(client: Client, *, limit: int | None = None, **wanted: Any) -> Iterator[TraceSummary]:
    """Traces, page by page; all of them without a limit. wanted: the parameters of the API, None for all."""
    after: str | None = ""
    while after is not None and (limit is None or limit > 0):
        size = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
        page = client.get("/traces", TracePage, **wanted | {"limit": size, "after": after or None})
        yield from page.data
        after = page.next
        limit = None if limit is None else limit - len(page.data)


def read_trace(client: Client, trace_id: str) -> TraceDetail:
    """Read one trace with its conversation. Raises `NotFound`."""
    return client.get(f"/traces/{quote(trace_id, safe='')}", TraceDetail)


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

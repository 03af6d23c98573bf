"""Reads of the bus that outlive a connection: an answer that was under way when the connection broke never arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.runtime import logs

log = logs.get("bus")

_T = TypeVar("_T")
#: Attempts of one read: each but the last met another break of the connection. Without a break, the error is raised.
_ATTEMPTS = 3
_AGAIN_S = 0.2


async def read_across_reconnects(bus: Connection, read: Callable[[], Awaitable[_T]]) -> _T:
    """Await `read()`, and again if the connection was replaced while it waited in vain; `read` must change nothing.

    Raises the error of the last `read()`.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        before = bus.nc.stats["reconnects"]
        try:
            return await read()
        except (NatsError, TimeoutError) as error:
            if attempt == _ATTEMPTS or bus.nc.stats["reconnects"] == before:
                raise
            log.info("asked again: the connection broke before the answer came", error=repr(error), attempt=attempt)
    raise AssertionError("unreachable")


async def read_patiently(read: Callable[[], Awaitable[_T]], *, what: str, **ids: object) -> _T:
    """Await `read()`, again and again while the bus is away, which is logged once. what: of the bus that is read."""
    is_away = False
    while True:
        try:
            return await read()
        except (NatsError, TimeoutError, OSError) as error:
            if not is_away:
                log.warning("the bus is away, and is read again", what=what, error=repr(error), **ids)
            is_away = True
            await asyncio.sleep(_AGAIN_S)

"""Checks that the durables that a service takes from, and the buckets that it writes, exist."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection
from synth.errors import Permanent
from synth.runtime import logs

log = logs.get("consumers")

_AGAIN_S = 1.0
_END_S = 5.0


async def watch_consumers(
    bus: Connection, queues: list[tuple[str, str]], stop: asyncio.Event, *, every_s: float = 5.0
) -> None:
    """Raise when one of these durables is gone: FastStream's pull loop would spin on it and say nothing.

    queues: each the name of its stream and its own.
    """
    while not stop.is_set():
        try:
            await check_consumers(bus, queues)
        except (NatsError, TimeoutError) as error:
            log.warning("cannot look at the consumers", error=repr(error))
        await _pause(stop, every_s)


async def start_on_consumers(
    bus: Connection,
    queues: list[tuple[str, str]],
    stop: asyncio.Event,
    *,
    buckets: list[str],
    start: Callable[[], Coroutine[Any, Any, None]],
) -> bool:
    """Start the readers of these durables; returns whether the start was complete before `stop`.

    Waits while the bus is away. start: called once the bus confirms that these durables and KV buckets exist, and again
    if the bus goes away during it. Raises `Permanent` when one does not exist: the service would otherwise notice it
    only much later.
    """
    while not stop.is_set():
        try:
            await check_consumers(bus, queues)
            for name in buckets:
                await _check_bucket(bus, name)
            return await _run_before(stop, start())
        except ConnectionClosedError:
            # This connection stays closed; a restarted process opens another one.
            raise
        except (NatsError, TimeoutError) as error:
            log.warning("the start waits: the bus does not answer", error=repr(error))
        await _pause(stop, _AGAIN_S)
    return False


async def check_consumers(bus: Connection, queues: list[tuple[str, str]]) -> None:
    """Raise `Permanent` when one of these durables is not there."""
    for stream, queue in queues:
        try:
            await bus.js.consumer_info(stream, queue)
        except NotFoundError as error:
            raise Permanent(f"the consumer {queue} is gone; run `synthd bus init`") from error


async def _run_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Return whether the work ended before `stop`, which cancels it. Raises the errors of the work."""
    working, stopped = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        stopped.cancel()
        await cancel_until_ended(working, what="a start", again_s=1.0, within_s=_END_S)


async def _check_bucket(bus: Connection, name: str) -> None:
    try:
        await bus.js.key_value(name)
    except NotFoundError as error:
        raise Permanent(f"the bucket {name} is not there; run `synthd bus init`") from error


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass

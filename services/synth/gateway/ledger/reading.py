"""Reads of the bus for the ledger."""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import StreamInfo

from synth.bus.connection import Connection
from synth.bus.reading import read_across_reconnects
from synth.bus.recorded import MSG_ID, TTL, delivery_numbers
from synth.bus.replay import read_stream
from synth.errors import Transient
from synth.runtime import logs

log = logs.get("ledger")

#: The longest wait for a message in the middle of a stream.
_STALL_S = 10.0


async def read_messages(bus: Connection, stream: str, after: int) -> AsyncGenerator[Msg]:
    """Yield the stream's messages after a sequence, until the server delivers no more.

    A server that has a message and cannot read it delivers neither the message nor the end.
    """
    async with aclosing(read_stream(bus.nc, [">"], stream=stream, after=after, headers_only=True)) as reading:
        while True:
            try:
                async with asyncio.timeout(_STALL_S):
                    msg = await anext(reading)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                if not bus.nc.is_connected:
                    raise Transient(f"the bus went away while {stream} was read") from error
                log.warning("the bus reads no further", stream=stream)
                return
            yield msg


async def read_info(bus: Connection, stream: str) -> StreamInfo:
    """Return what the server knows of a stream. Raises `Transient` if it does not answer."""
    try:
        return await read_across_reconnects(bus, lambda: bus.js.stream_info(stream))
    except (TimeoutError, NatsError) as error:
        raise Transient(f"the bus did not answer: {error!r}") from error


def digest_of(msg: Msg) -> int:
    """Return a digest of a message's subject, time, id and size; 0 if the message expires by its own header."""
    headers = msg.headers or {}
    if TTL in headers:
        return 0
    nanoseconds = delivery_numbers(msg.reply)[2]
    text = f"{msg.subject} {nanoseconds} {headers.get(MSG_ID, '')} {headers.get('Nats-Msg-Size', '')}"
    return zlib.crc32(text.encode()) or 1

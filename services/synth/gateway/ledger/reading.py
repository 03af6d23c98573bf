"""Reads of the bus for the ledger."""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID, TTL, delivery_numbers
from synth.bus.replay import read_stream
from synth.errors import Transient
from synth.runtime import logs

log = logs.get("ledger")

#: The longest wait for a message in the middle of a stream.
_STALL_S = 10.0


class _State(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0
    deleted: list[int] = []


class _Info(msgspec.Struct):
    """JetStream's information about a stream; nats-py requests it without the deleted sequences."""

    state: _State


class StreamReading:
    """A read of a stream after a sequence. unreadable: the messages that the server has and could not read, afterwards.

    A server delivers neither such a message nor the end of the stream, so every other reader waits in vain, also for a
    message that expires and is in no ledger.
    """

    def __init__(self, bus: Connection, stream: str, after: int) -> None:
        self.unreadable: list[int] = []
        self._bus = bus
        self._stream = stream
        self._after = after

    async def messages(self) -> AsyncGenerator[Msg]:
        """Yield the messages, until the server delivers no more."""
        gaps: list[tuple[int, int]] = []
        last, stream, bus = self._after, self._stream, self._bus
        messages = read_stream(bus.nc, [">"], stream=stream, after=self._after, headers_only=True)
        async with aclosing(messages) as reading:
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
                    self.unreadable = await self._find_unreadable(gaps, last)
                    return
                seq = delivery_numbers(msg.reply)[0]
                if seq > last + 1:
                    gaps.append((last + 1, seq))
                last = seq
                yield msg

    async def _find_unreadable(self, gaps: list[tuple[int, int]], last: int) -> list[int]:
        """Return the sequences in the gaps, and after the last message, that the server does not call deleted."""
        try:
            reply = await self._bus.nc.request(
                f"{self._bus.nc.api}.STREAM.INFO.{self._stream}", b'{"deleted_details": true}', timeout=_STALL_S
            )
        except (TimeoutError, NatsError) as error:
            raise Transient(f"the bus did not answer: {error!r}") from error
        state = msgspec.json.decode(reply.data, type=_Info).state
        deleted, ranges = set(state.deleted), [*gaps, (last + 1, state.last_seq + 1)]
        return [seq for begin, end in ranges for seq in range(max(begin, state.first_seq), end) if seq not in deleted]


def digest_of(msg: Msg) -> int:
    """Return a digest of a message's subject, time, id and size; 0 if the message expires by its own header."""
    headers = msg.headers or {}
    if TTL in headers:
        return 0
    nanoseconds = delivery_numbers(msg.reply)[2]
    text = f"{msg.subject} {nanoseconds} {headers.get(MSG_ID, '')} {headers.get('Nats-Msg-Size', '')}"
    return zlib.crc32(text.encode()) or 1

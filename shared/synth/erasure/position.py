"""The position of the eraser: the sequence up to which every deletion in the log is erased."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from functools import partial

import msgspec
from nats.js.errors import KeyNotFoundError

from synth.bus.connection import Connection
from synth.bus.reading import read_patiently
from synth.bus.server.topology import ERASURE, EVENTS

_KEY = "swept"


class SweptLog(msgspec.Struct, frozen=True, kw_only=True):
    """A position. stream: when the log's stream was made, as the position holds for no other log."""

    stream: str
    seq: int = 0


async def read_swept_patiently(bus: Connection) -> SweptLog:
    """Return the position in this log, 0 without one; waits for a bus that is away."""
    return await read_patiently(partial(_read, bus), what="the position of the erasures")


async def write_swept(bus: Connection, swept: SweptLog) -> None:
    """Store the position. Raises the errors of a publish."""
    bucket = await bus.js.key_value(ERASURE)
    await bucket.put(_KEY, msgspec.json.encode(swept))


async def _read(bus: Connection) -> SweptLog:
    made = str((await bus.js.stream_info(EVENTS)).created)
    bucket = await bus.js.key_value(ERASURE)
    try:
        entry = await bucket.get(_KEY)
        swept = msgspec.json.decode(entry.value or b"", type=SweptLog)
    except (KeyNotFoundError, msgspec.DecodeError):
        return SweptLog(stream=made)
    return swept if swept.stream == made else SweptLog(stream=made)

"""The position of the eraser: the sequence up to which every deletion in the log is erased."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from nats.js.errors import KeyNotFoundError

from synth.bus.connection import Connection
from synth.bus.server.topology import ERASURE, EVENTS
from synth.runtime import logs

log = logs.get("sweep")

_KEY = "swept"
_AGAIN_S = 1.0


class SweptLog(msgspec.Struct, frozen=True, kw_only=True):
    """A position. stream: when the log's stream was made, as the position holds for no other log."""

    stream: str
    seq: int = 0


async def read_swept_patiently(bus: Connection) -> SweptLog:
    """Return the position in this log, 0 without one; waits for a bus that is away."""
    is_away = False
    while True:
        try:
            return await _read(bus)
        except (NatsError, JetStreamError, TimeoutError) as error:
            if not is_away:
                log.warning("the position of the erasures cannot be read now", error=repr(error))
            is_away = True
            await asyncio.sleep(_AGAIN_S)


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

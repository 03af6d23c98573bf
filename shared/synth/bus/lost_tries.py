"""Counts tries of an event that were lost with their process, so that an event that kills it is not tried for ever.

Invariants. An event that was delivered more than `MAX_DELIVERIES` times is suspected. Each try of a suspected event is
counted in the KV bucket `event_tries` before it begins, and the count is deleted after any end of the try: only tries
whose process was lost stay, in a row. In one process one suspect of all queues is tried at a time, so that an event is
not counted for the death that another one causes. A delivery that waited for its turn, or that went back
without a try, is not counted, nor is a handler while it waits for other services.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from synth.bus.connection import Connection
from synth.bus.held_deliveries import times_delivered
from synth.bus.recorded import delivery_numbers
from synth.bus.server.topology import EVENT_TRIES, MAX_DELIVERIES
from synth.errors import Transient
from synth.fairness.slots import Slot
from synth.runtime import logs

log = logs.get("lost_tries")

_MAX_RACES = 12
_FORGET_S = 2.0


class Suspect:
    """A suspected event that has the process's one place of suspects."""

    def __init__(self, bus: Connection, key: str, place: Slot) -> None:
        self._bus = bus
        self._key = key
        self._place = place
        self._forgetting: asyncio.Task[None] | None = None
        self._counted = False

    async def begin(self) -> int:
        """Count a try. Returns how many before it were lost with their process, in a row.

        Raises `Transient` when the bus does not take the count.
        """
        self._counted = True
        try:
            return await self._count(self._key)
        except (NatsError, TimeoutError) as error:
            raise Transient(f"cannot count a try of {self._key}: {error!r}", delay=1.0) from error

    def release(self) -> None:
        """Give up the place: the handler now waits for others, and is not counted for a death that they cause."""
        self._place.release()
        if self._forgetting is None:
            self._forgetting = asyncio.create_task(self._forget(self._key))

    async def end(self) -> None:
        """Delete the count: the try has ended, and its process lives."""
        if self._forgetting is not None:
            await self._forgetting
        elif self._counted:
            await self._forget(self._key)

    async def _count(self, key: str) -> int:
        """Count one more. Returns how many there were."""
        bucket = await self._bus.js.key_value(EVENT_TRIES)
        for _ in range(_MAX_RACES):
            try:
                entry = await bucket.get(key)
            except KeyNotFoundError:
                lost, revision = 0, None
            else:
                lost, revision = int(entry.value or b"0"), entry.revision
            body = str(lost + 1).encode()
            try:
                await (bucket.create(key, body) if revision is None else bucket.update(key, body, last=revision))
            except KeyWrongLastSequenceError:
                continue
            return lost
        raise Transient(f"{key}: lost {_MAX_RACES} races for its count", delay=1.0)

    async def _forget(self, key: str) -> None:
        try:
            async with asyncio.timeout(_FORGET_S):
                await (await self._bus.js.key_value(EVENT_TRIES)).delete(key)
        except (NatsError, TimeoutError) as error:
            # One try too many counts as lost, until the next one ends.
            log.warning("cannot take back that a try was lost", event=key, error=repr(error))


@asynccontextmanager
async def hold_place(bus: Connection, queue: str, msg: Msg, org: str) -> AsyncGenerator[Suspect | None]:
    """Yield the place of suspects, in its turn, for a suspected event; None for another. queue: of the delivery."""
    if times_delivered(msg) <= MAX_DELIVERIES:
        yield None
        return
    async with bus.suspects.hold(org) as place:
        suspect = Suspect(bus, f"{queue}.{delivery_numbers(msg.reply)[0]}", place)
        try:
            yield suspect
        finally:
            await suspect.end()

"""The events that say that a newer version wrote them.

Where one had declared their schema, a process leaves the queue of such an event to it; where that version no longer
runs, the queue stands still until the event is no longer in the log. Where none had, they are damaged stop nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from synth.bus.connection import Connection
from synth.bus.recorded import UnknownEvent, from_delivery
from synth.bus.replay import read_stream
from synth.bus.server.topology import EVENTS
from synth.erasure.erase import erase_message
from synth.erasure.records import record_erasure


@dataclass(frozen=True)
class NewerEvent:
    """An event that this version cannot read. seq: its place in the log; schema: as it says itself.

    declared: a version had declared that schema when the event was written.
    """

    seq: int
    subject: str
    schema: int
    time: datetime
    declared: bool


async def find_newer_events(bus: Connection) -> list[NewerEvent]:
    """All of them that are in the log now, oldest first. Raises `Transient` where the log cannot be read."""
    found: list[NewerEvent] = []
    async for msg in read_stream(bus.nc, [">"]):
        recorded = from_delivery(msg)
        if isinstance(recorded.event, UnknownEvent) and recorded.event.newer:
            declared = await bus.schemas.had_declared(recorded)
            found.append(NewerEvent(recorded.seq, msg.subject, recorded.schema, recorded.time, declared))
    return found


async def drop_newer_events(bus: Connection, events: list[NewerEvent]) -> int:
    """Remove them from the log; returns how many were still there. What their writers said with them is lost."""
    await record_erasure(bus, EVENTS, [event.seq for event in events])
    return sum([await erase_message(bus, EVENTS, event.seq) for event in events])

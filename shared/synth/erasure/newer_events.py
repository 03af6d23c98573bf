"""Events that claim that a newer version wrote them.

If a version had declared the schema of such an event, a process leaves its queue to that version; if that version no
longer runs, the queue stands still until the event is no longer in the log. If none had, the event is damaged and stops
no queue.
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
    """An event that this version cannot read. seq: its place in the log; schema: the one in its own header.

    declared: a version had declared that schema when the event was written.
    """

    seq: int
    subject: str
    schema: int
    time: datetime
    declared: bool


async def find_newer_events(bus: Connection) -> list[NewerEvent]:
    """Return all of them that are in the log now, oldest first. Raises `Transient` if the log cannot be read."""
    results: list[NewerEvent] = []
    async for msg in read_stream(bus.nc, [">"]):
        recorded = from_delivery(msg)
        if isinstance(recorded.event, UnknownEvent) and recorded.event.newer:
            declared = await bus.schemas.had_declared(recorded)
            results.append(NewerEvent(recorded.seq, msg.subject, recorded.schema, recorded.time, declared))
    return results


async def drop_newer_events(bus: Connection, events: list[NewerEvent]) -> int:
    """Remove them from the log; returns how many were still there. Their content is lost."""
    await record_erasure(bus, EVENTS, [event.seq for event in events])
    return sum([await erase_message(bus, EVENTS, event.seq) for event in events])

"""Records of erased messages, in the audit stream: they distinguish an erased message from a lost one."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import msgspec

from synth.api.audit import AuditRecord
from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID
from synth.bus.replay import replay_messages
from synth.bus.server.topology import AUDIT, PUBLISH_TIMEOUT_S, audit_subject

#: Sequences of one record: with them it is well below the largest that the audit stream takes.
_OF_A_RECORD = 500


async def record_erasure(bus: Connection, stream: str, sequences: list[int]) -> None:
    """Record that these messages are erased; call it before they are. Raises the errors of a publish."""
    for first in range(0, len(sequences), _OF_A_RECORD):
        some, now = sequences[first : first + _OF_A_RECORD], datetime.now(UTC)
        record = AuditRecord(
            kind="erasure",
            org=None,
            key="bus",
            action=f"erase {stream}",
            about=",".join(map(str, some)),
            address=None,
            status=200,
            at=now,
            until=now,
            count=len(some),
        )
        await bus.js.publish(
            audit_subject(None, "erasure"),
            msgspec.json.encode(record),
            stream=AUDIT,
            timeout=PUBLISH_TIMEOUT_S,
            headers={MSG_ID: uuid4().hex},
        )


async def read_erasures(bus: Connection, stream: str) -> set[int]:
    """Return the sequences that were erased from a stream. Raises `Transient` when the bus does not answer."""
    messages = await replay_messages(bus.nc, [audit_subject(None, "erasure")], stream=AUDIT)
    records = [msgspec.json.decode(message.data, type=AuditRecord) for message in messages]
    return {
        int(seq)
        for record in records
        if record.action == f"erase {stream}" and record.about
        for seq in record.about.split(",")
    }

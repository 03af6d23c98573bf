"""Pages of the audit stream."""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec
from nats.errors import Error as NatsError

from synth.api.audit import AuditRecord
from synth.bus.connection import Connection
from synth.bus.recorded import delivery_numbers
from synth.bus.replay import read_stream
from synth.bus.server.topology import AUDIT, audit_subject
from synth.errors import Transient

_TIMEOUT_S = 20.0
_REQUEST_S = 5.0
_EPOCH = datetime.fromtimestamp(0, UTC)


async def list_records(
    bus: Connection, *, org: str | None, after: int, since: datetime | None, limit: int
) -> tuple[list[AuditRecord], bool]:
    """Return the records after sequence `after`, oldest first, and whether there are more.

    org: only records of this organisation; None: of all. since: no records from before this time. Raises `Transient`.
    """
    subject = audit_subject(org, "*") if org is not None else audit_subject("*", "*")
    records: list[AuditRecord] = []
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if since is not None:
                first = await _first_since(bus, subject, since)
                if first is None:
                    return [], False
                after = max(after, first - 1)
            async with aclosing(read_stream(bus.nc, [subject], after=after, stream=AUDIT)) as messages:
                async for message in messages:
                    record = msgspec.json.decode(message.data, type=AuditRecord)
                    records.append(msgspec.structs.replace(record, id=delivery_numbers(message.reply)[0]))
                    if len(records) > limit:
                        return records[:limit], True
    except (TimeoutError, NatsError) as error:
        raise Transient(f"the bus did not answer a read of the audit stream: {error!r}") from error
    return records, False


async def _first_since(bus: Connection, subject: str, since: datetime) -> int | None:
    """Return the sequence of the first record at this time or later; None without any."""
    # The server counts nanoseconds in 64 bits, and a later time than they can hold would wrap to an earlier one.
    if since.timestamp() > time.time():
        return None
    moment = max(since.astimezone(UTC), _EPOCH).isoformat().replace("+00:00", "Z")
    question = json.dumps({"start_time": moment, "next_by_subj": subject, "batch": 1}).encode()
    reply = await bus.nc.request(f"{bus.nc.api}.DIRECT.GET.{AUDIT}", question, timeout=_REQUEST_S)
    sequence = (reply.headers or {}).get("Nats-Sequence")
    return int(sequence) if sequence else None

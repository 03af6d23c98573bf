"""The writer of the audit stream, which runs beside the requests, has a bounded queue and reports each loss.

Invariants. Noting a fact never blocks. Within a window equal facts are counted. The different facts of an organisation
and a kind are limited; facts beyond the limit are counted together. So a caller without a key costs a bounded number of
records and does not displace other records: the stream's limit is per organisation and kind (`topology`).
"""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from synth.api.audit import OTHERS, AuditFact, AuditRecord
from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID
from synth.bus.server.topology import AUDIT, PUBLISH_TIMEOUT_S, audit_subject
from synth.gateway.audit.settings import AuditSettings
from synth.gateway.metrics import AUDIT_LOST, AUDIT_WRITTEN
from synth.runtime import logs

log = logs.get("audit")

_AT_ONCE = 32
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0
#: The divisor of a window's records that the unknown keys of one address may take.
_SHARE_OF_ADDRESS = 10


@dataclass
class _Repeats:
    """The repeats of a fact since its record was written."""

    record: AuditRecord
    count: int = 0
    first: datetime | None = None
    last: datetime | None = None


class AuditTrail:
    """The records of this gateway for the audit stream."""

    def __init__(self, bus: Connection, settings: AuditSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._window: dict[AuditFact, _Repeats] = {}
        self._taken: Counter[tuple[str | None, str]] = Counter()
        self._queue: asyncio.Queue[AuditRecord] = asyncio.Queue(settings.audit_queue)
        self._lost: Counter[str] = Counter()

    def note(self, fact: AuditFact, action: Callable[[], str] | None = None) -> None:
        """Note a fact. action: computes the action of a fact that has none, if it needs a record of its own."""
        now = datetime.now(UTC)
        known = fact if fact in self._window else self._bounded(fact)
        repeats = self._window.get(known)
        if repeats is not None:
            repeats.count += 1
            repeats.first, repeats.last = repeats.first or now, now
            return
        named = msgspec.structs.replace(known, action=action()) if action is not None and not known.action else known
        record = AuditRecord(**msgspec.structs.asdict(named), at=now, until=now)
        self._window[known] = _Repeats(record)
        self._enqueue(record)

    async def run(self, stop: asyncio.Event) -> None:
        """Write records until the stop, then the remaining records."""
        writing = asyncio.create_task(self._write_all())
        try:
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.audit_window_s):
                        await stop.wait()
                self._close_window()
            await self._queue.join()
        finally:
            await cancel_until_ended(writing, what="the writer of the audit stream", again_s=0.2)

    async def close(self) -> None:
        """Write the records since the stop, because the last requests ended after it."""
        self._close_window()
        while not self._queue.empty():
            record = self._queue.get_nowait()
            if self._bus.nc.is_connected:
                await self._write(record)
            else:
                self._lose(record, "the gateway ends, and the bus is away")

    def _bounded(self, fact: AuditFact) -> AuditFact:
        """Return the fact, or the fact that stands for all facts beyond the limit of this window."""
        most = self._settings.audit_window_records
        if fact.org is None:
            place = (None, fact.address or "")
            if self._taken[place] >= most // _SHARE_OF_ADDRESS:
                fact = msgspec.structs.replace(fact, key=OTHERS, action=OTHERS)
                if fact in self._window:
                    return fact
            self._taken[place] += 1
        if self._taken[fact.org or "", fact.kind] >= most:
            # A known key keeps its id, and an operator's key also its action.
            action = fact.action if fact.kind == "operator" else OTHERS
            key = fact.key if fact.org is not None else OTHERS
            fact = msgspec.structs.replace(fact, key=key, action=action, about=OTHERS, address=OTHERS)
        if fact not in self._window:
            self._taken[fact.org or "", fact.kind] += 1
        return fact

    def _close_window(self) -> None:
        for repeats in self._window.values():
            if repeats.count and repeats.first and repeats.last:
                self._enqueue(
                    msgspec.structs.replace(repeats.record, at=repeats.first, until=repeats.last, count=repeats.count)
                )
        self._window.clear()
        self._taken.clear()
        if self._lost:
            log.error("audit records are lost: the bus does not take them", **self._lost)
            self._lost.clear()

    def _enqueue(self, record: AuditRecord) -> None:
        try:
            self._queue.put_nowait(record)
        except asyncio.QueueFull:
            self._lose(record, "the queue is full (SYNTH_AUDIT_QUEUE)")

    async def _write_all(self) -> None:
        while True:
            records = [await self._queue.get()]
            while len(records) < _AT_ONCE and not self._queue.empty():
                records.append(self._queue.get_nowait())
            await asyncio.gather(*(self._write(record) for record in records))
            for _ in records:
                self._queue.task_done()

    async def _write(self, record: AuditRecord) -> None:
        # Retries with the same id make one record.
        headers = {MSG_ID: uuid4().hex}
        subject, body = audit_subject(record.org, record.kind), msgspec.json.encode(record)
        pause, problem = _FIRST_PAUSE_S, "it did not answer"
        try:
            async with asyncio.timeout(self._settings.audit_write_s):
                while True:
                    try:
                        await self._bus.js.publish(
                            subject, body, stream=AUDIT, timeout=PUBLISH_TIMEOUT_S, headers=dict(headers)
                        )
                        break
                    except (NatsError, JetStreamError, OSError) as error:
                        problem = repr(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE_S)
        except asyncio.CancelledError:
            self._lose(record, f"the gateway ends: {problem}")
            raise
        except TimeoutError:
            self._lose(record, f"the bus did not take it in time (SYNTH_AUDIT_WRITE_S): {problem}")
        else:
            AUDIT_WRITTEN.labels(record.kind).inc()

    def _lose(self, record: AuditRecord, reason: str) -> None:
        AUDIT_LOST.labels(record.kind).inc()
        if record.kind == "operator":
            log.error("an audit record of an operator is lost", reason=reason, record=msgspec.to_builtins(record))
        else:
            self._lost[record.kind] += 1

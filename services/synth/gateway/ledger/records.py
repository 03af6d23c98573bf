"""The comparison of dead letters and audit records with the ledger.

Nothing is decided by them, so a lost one stops no write. It is reported once: in the gateway's log, in a metric and in
a record of the audit stream.

Their streams forget: a message is too old, or its subject has as many newer ones as the stream keeps. So the ledger
also has the time and the subject of each message, and calls one lost only if neither holds and it was not erased.
"""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import time
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from synth.api.audit import AuditRecord
from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID, delivery_numbers
from synth.bus.server.topology import AUDIT, DEAD, PUBLISH_TIMEOUT_S, audit_subject
from synth.erasure.records import read_erasures
from synth.gateway import metrics
from synth.gateway.ledger.file import BLOCK, WIDTH, LedgerFile
from synth.gateway.ledger.reading import StreamReading, digest_of
from synth.gateway.read_model.event_log import read_info
from synth.runtime import logs

log = logs.get("ledger")

RECORD_STREAMS = (DEAD, AUDIT)
#: The most that the clocks of the bus and of this gateway may differ.
_CLOCKS_S = 600.0
#: Sequences that a report names.
_NAMED = 500


class _Missing(NamedTuple):
    seq: int
    time: int
    subject: int


class RecordWatch:
    """The ledger's part of the dead letters and the audit records."""

    def __init__(self, bus: Connection, file: LedgerFile) -> None:
        self._bus = bus
        self._file = file

    async def record(self) -> None:
        """Record new messages."""
        for stream in RECORD_STREAMS:
            known = self._file.stream(stream)
            if known is not None and (await read_info(self._bus, stream)).state.last_seq > known.reached:
                await self._read(stream, after=known.reached)

    async def compare(self) -> dict[str, list[int]]:
        """Return the sequences that each stream has lost, and record new messages."""
        lost = {stream: await self._compare(stream) for stream in RECORD_STREAMS}
        return {stream: sequences for stream, sequences in lost.items() if sequences}

    async def report(self, stream: str, sequences: list[int]) -> None:
        """Report lost messages, and take them out of the ledger. Raises the errors of a publish."""
        log.error("the bus has lost records", stream=stream, count=len(sequences), sequences=sequences[:_NAMED])
        metrics.BUS_LOST.labels(stream).inc(len(sequences))
        now = datetime.now(UTC)
        about = ",".join(map(str, sequences[:_NAMED]))
        record = AuditRecord(
            kind="loss",
            org=None,
            key="bus",
            action=f"lose {stream}",
            about=about,
            address=None,
            status=500,
            at=now,
            until=now,
            count=len(sequences),
        )
        # Each gateway notices it.
        id = f"loss:{stream}:{zlib.crc32(repr(sequences).encode())}"
        await self._bus.js.publish(
            audit_subject(None, "loss"),
            msgspec.json.encode(record),
            stream=AUDIT,
            timeout=PUBLISH_TIMEOUT_S,
            headers={MSG_ID: id},
        )
        self._forget(stream, sequences)

    async def _compare(self, stream: str) -> list[int]:
        missing, present = await self._read(stream, after=0)
        if not missing:
            return []
        config = (await read_info(self._bus, stream)).config
        oldest = time.time() - config.max_age + _CLOCKS_S if config.max_age else 0.0
        most = config.max_msgs_per_subject
        erased = await read_erasures(self._bus, stream)
        lost: list[int] = []
        for seq, written, subject in reversed(missing):
            kept = most is None or most <= 0 or present[subject] < most
            present[subject] += 1
            if kept and written >= oldest and seq not in erased:
                lost.append(seq)
        self._forget(stream, {seq for seq, _, _ in missing}.difference(lost))
        return sorted(lost)

    async def _read(self, stream: str, *, after: int) -> tuple[list[_Missing], Counter[int]]:
        """Read a stream after a sequence and record new messages.

        Returns the known messages that are missing or changed, and the number of the present ones by their subjects.
        """
        known = self._file.stream(stream)
        assert known is not None
        last, missing, present = after, list[_Missing](), Counter[int]()
        first = (after + 1) // BLOCK * BLOCK
        seen = _empty()

        def close_block() -> None:
            nonlocal first, seen
            block = self._file.records(stream, first)
            for at in range(BLOCK) if seen != block else ():
                seq, place = first + at, slice(WIDTH * at, WIDTH * (at + 1))
                digest, written, subject = block[place]
                if seq > known.reached:
                    block[place] = seen[place]
                elif seq > after and digest and digest != seen[WIDTH * at]:
                    missing.append(_Missing(seq, written, subject))
            if last > known.reached:
                self._file.put_records(stream, first, block, reached=min(last, first + BLOCK - 1))
            first, seen = first + BLOCK, _empty()

        async with aclosing(StreamReading(self._bus, stream, after).messages()) as messages:
            async for msg in messages:
                seq, _, nanoseconds, _ = delivery_numbers(msg.reply)
                while seq >= first + BLOCK:
                    close_block()
                subject = zlib.crc32(msg.subject.encode())
                present[subject] += 1
                at = WIDTH * (seq - first)
                last = seq
                seen[at : at + WIDTH] = array("I", (digest_of(msg), nanoseconds // 1_000_000_000, subject))
        while first <= max(last, known.reached):
            close_block()
        return missing, present

    def _forget(self, stream: str, sequences: Iterable[int]) -> None:
        by_block: dict[int, list[int]] = {}
        for seq in sequences:
            by_block.setdefault(seq // BLOCK * BLOCK, []).append(seq)
        for first, its in by_block.items():
            block = self._file.records(stream, first)
            for seq in its:
                block[WIDTH * (seq - first)] = 0
            self._file.put_records(stream, first, block, reached=0)


def _empty() -> array[int]:
    return array("I", bytes(4 * WIDTH * BLOCK))

"""The comparison of the bus's content with the ledger, at the start and then at intervals, and the ledger's updates.

nats-server drops a damaged message, or all messages after it in its file, and continues as if they had never existed.
The server checks a message's checksum when it is read, so a message that is read is whole, and one that is not read is
missing. The buckets of secrets are compared before the first request; the log, which may be long, beside the requests:
only its end is checked before. A missing message is looked up twice, because a server that has just become the leader
may not know all messages yet.
"""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from array import array
from contextlib import aclosing
from dataclasses import dataclass, field

from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from synth.backup.streams import RESTORED
from synth.bus.connection import Connection
from synth.bus.kv.bucket import key_of
from synth.bus.recorded import delivery_numbers
from synth.bus.server.topology import EVENTS, SECRET_BUCKETS
from synth.erasure.records import read_erasures
from synth.errors import Transient
from synth.gateway.ledger.file import BLOCK, KnownStream, LedgerFile, Revision
from synth.gateway.ledger.reading import StreamReading, digest_of
from synth.gateway.ledger.records import RECORD_STREAMS, RecordWatch
from synth.gateway.read_model.event_log import read_info
from synth.runtime import logs

log = logs.get("ledger")

_BUCKETS = [f"KV_{bucket}" for bucket in SECRET_BUCKETS]
#: The interval of the checks for messages that the ledger lacks.
_RECORD_S = 5.0
_AGAIN_S = 1.0
_NAMED = 5
#: Characters of a hash in a key.
_HASH = 64


@dataclass
class Damage:
    """The acknowledged messages that the bus lacks. keys: of each bucket, with the number of keys that it had."""

    events: list[int] = field(default_factory=list[int])
    keys: dict[str, tuple[list[str], int]] = field(default_factory=dict[str, tuple[list[str], int]])

    def __bool__(self) -> bool:
        return bool(self.events or self.keys)

    @property
    def counts(self) -> str:
        """Return the numbers of missing items, for callers of the API."""
        parts = [f"{len(self.events)} events"] if self.events else []
        return ", ".join([*parts, *(f"{len(lost)} of {of} {bucket}" for bucket, (lost, of) in self.keys.items())])

    def text(self) -> str:
        """Return the names of missing items, for the operator."""
        parts = [f"{len(self.events)} events of the log ({_some(_ranges(self.events))})"] if self.events else []
        for bucket, (lost, of) in self.keys.items():
            parts.append(f"{len(lost)} of {of} {bucket} ({_some([_short(key) for key in lost])})")
        return "; ".join(parts)


class LedgerWatch:
    """The keeper of one gateway's ledger, which reports messages that the bus has lost."""

    def __init__(self, bus: Connection, file: LedgerFile, *, check_s: float) -> None:
        """Prepare the watch. check_s: seconds between two comparisons with the bus's whole content."""
        self.damage = Damage()
        self._bus = bus
        self._file = file
        self._check_s = check_s
        self._records = RecordWatch(bus, file)
        self.records_lost: dict[str, list[int]] = {}
        """The dead letters and audit records that the last comparison did not find."""

    def check(self) -> str | None:
        """Return the missing items, for `/healthz`; None if nothing is missing."""
        if not self.damage:
            return None
        return (
            f"the bus has lost what it had acknowledged: {self.damage.text()}. The gateway takes no write. Restore a "
            "backup (synthctl restore, synthd bus restore); or, to go on with what is left, stop the gateway and "
            f"delete {self._file.path}"
        )

    async def begin(self) -> None:
        """Compare the buckets and the end of the log. Raises `Transient` if the bus does not answer."""
        for stream in (EVENTS, *_BUCKETS, *RECORD_STREAMS):
            info = await read_info(self._bus, stream)
            known, restored = self._file.stream(stream), (info.config.metadata or {}).get(RESTORED, "")
            if known is None or (restored and restored != known.restored):
                self._file.begin(stream, KnownStream(restored))
        await self.look(log_too=False)

    async def run(self) -> None:
        """Compare the log, then record new messages, and compare everything at each interval, for ever."""
        due = 0.0
        while True:
            try:
                if time.monotonic() >= due:
                    await self.look(log_too=True)
                    await self.look_at_records()
                    due = time.monotonic() + self._check_s
                await self.record()
            except (Transient, NatsError, JetStreamError, TimeoutError) as error:
                log.warning("the bus cannot be compared with the ledger now", error=repr(error))
            await asyncio.sleep(_RECORD_S)

    async def close(self) -> None:
        """Record the last messages, and close the file."""
        try:
            if self._bus.nc.is_connected:
                await self.record()
        except (Transient, NatsError, JetStreamError, TimeoutError) as error:
            log.warning("the ledger lacks what came last", error=repr(error))
        self._file.close()

    async def record(self) -> None:
        """Record the bus's new messages in the ledger."""
        for stream in (EVENTS, *_BUCKETS):
            known = self._file.stream(stream)
            if known is None or (await read_info(self._bus, stream)).state.last_seq <= known.reached:
                continue
            if stream == EVENTS:
                await self._read_log(after=known.reached)
            else:
                await self._read_bucket(stream, after=known.reached)
        await self._records.record()

    async def look(self, *, log_too: bool) -> None:
        """Compare the buckets, and the log or only its end, with the ledger; note the missing items."""
        damage = await self._compare(log_too)
        if damage:
            await asyncio.sleep(_AGAIN_S)
            damage = await self._compare(log_too)
        if damage:
            log.error("the bus has lost what it had acknowledged", missing=damage.text(), ledger=str(self._file.path))
        self.damage = damage

    async def look_at_records(self) -> None:
        """Compare the dead letters and the audit records, and report lost ones once."""
        lost = await self._records.compare()
        if lost:
            await asyncio.sleep(_AGAIN_S)
            lost = await self._records.compare()
        self.records_lost = lost
        for stream, sequences in lost.items():
            await self._records.report(stream, sequences)

    async def _compare(self, log_too: bool) -> Damage:
        result = Damage(await self._compare_log() if log_too else await self._compare_end())
        for stream in _BUCKETS:
            known = self._file.keys(stream)
            lost = await self._read_bucket(stream, after=0)
            if lost:
                erased = await read_erasures(self._bus, stream)
                gone = [subject for subject in lost if known[subject].seq in erased]
                self._file.put_keys(stream, {}, gone=gone, reached=0)
                lost = [subject for subject in lost if subject not in gone]
            if lost:
                result.keys[stream.removeprefix("KV_")] = (sorted(map(key_of, lost)), len(known))
        return result

    async def _compare_end(self) -> list[int]:
        """Return the events of the ledger that are after the log's end."""
        last, lost = (await read_info(self._bus, EVENTS)).state.last_seq, list[int]()
        known = self._file.stream(EVENTS)
        first = (last + 1) // BLOCK * BLOCK
        while known is not None and first <= known.reached:
            lost += [seq for seq, digest in enumerate(self._file.block(first), first) if digest and seq > last]
            first += BLOCK
        return await self._without_erased(lost)

    async def _compare_log(self) -> list[int]:
        return await self._without_erased(await self._read_log(after=0))

    async def _without_erased(self, lost: list[int]) -> list[int]:
        if not lost:
            return lost
        erased = await read_erasures(self._bus, EVENTS)
        for first in sorted({seq // BLOCK * BLOCK for seq in lost if seq in erased}):
            block = self._file.block(first)
            for seq in erased.intersection(range(first, first + BLOCK)):
                block[seq - first] = 0
            self._file.put_block(first, block, reached=0)
        return [seq for seq in lost if seq not in erased]

    async def _read_log(self, *, after: int) -> list[int]:
        """Read the log after a sequence and record new events; return the events that are missing or changed."""
        known = self._file.stream(EVENTS)
        assert known is not None
        last, lost = after, list[int]()
        first = (after + 1) // BLOCK * BLOCK
        seen = array("I", bytes(4 * BLOCK))

        def close_block() -> None:
            nonlocal first, seen
            block = self._file.block(first)
            for at in range(BLOCK) if seen != block else ():
                seq = first + at
                if seq > known.reached:
                    block[at] = seen[at]
                elif seq > after and block[at] and block[at] != seen[at]:
                    lost.append(seq)
            if last > known.reached:
                self._file.put_block(first, block, reached=min(last, first + BLOCK - 1))
            first, seen = first + BLOCK, array("I", bytes(4 * BLOCK))

        reading = StreamReading(self._bus, EVENTS, after)
        async with aclosing(reading.messages()) as messages:
            async for msg in messages:
                seq = delivery_numbers(msg.reply)[0]
                while seq >= first + BLOCK:
                    close_block()
                last, seen[seq - first] = seq, digest_of(msg)
        while first <= max(last, known.reached):
            close_block()
        return sorted({*lost, *reading.unreadable})

    async def _read_bucket(self, stream: str, *, after: int) -> list[str]:
        """Read a bucket after a sequence and record new messages; return the subjects that are missing or changed."""
        known, seen, last = self._file.keys(stream), dict[str, Revision](), after
        reading = StreamReading(self._bus, stream, after)
        async with aclosing(reading.messages()) as messages:
            async for msg in messages:
                last = delivery_numbers(msg.reply)[0]
                seen[msg.subject] = Revision(last, digest_of(msg))
        lost = [
            subject
            for subject, was in (known.items() if after == 0 else ())
            if was.seq in reading.unreadable
            or (was.digest and (now := seen.get(subject)) != was and (now is None or now.seq <= was.seq))
        ]
        changed = {subject: now for subject, now in seen.items() if subject not in lost and known.get(subject) != now}
        if changed:
            self._file.put_keys(stream, changed, reached=last)
        return lost


def _ranges(sequences: list[int]) -> list[str]:
    """Format sequences in order, with consecutive ones as `first-last`."""
    ranges: list[tuple[int, int]] = []
    for seq in sequences:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


def _short(key: str) -> str:
    """Shorten the hashes in a key of a bucket."""
    return ".".join(part if len(part) < _HASH else f"{part[:8]}…" for part in key.split("."))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")

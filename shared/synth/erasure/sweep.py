"""Erases the events of deleted jobs and files from the log as they are deleted, so that the log gets their bytes back.

Invariants. As in `erase.py`: the `deleted` facts stay, and no event is erased before the blobs that it names are
removed. An erasure that was killed is started again: a bucket has the position up to which the deletions are erased.
A service that has not noticed a deletion may append events of the job after it: each deletion is looked at once more.

A full log takes no `deleted` either. A gateway then leaves it as a dead letter, and here events of the job or the file
are erased, one by one, until there is room for it. The last fact of its lifecycle stays until then, so that a killed
process is followed by one that goes on with the letter.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import ServiceUnavailableError
from obstore.exceptions import BaseError

from synth.backup.named_blobs import NamedBlobs
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID, SCHEMA, Recorded, decode, delivery_numbers, from_delivery
from synth.bus.replay import StreamFollower, read_stream
from synth.bus.server.topology import DEAD, EVENTS, PUBLISH_TIMEOUT_S
from synth.erasure.erase import TOMBSTONES, erase_messages, type_of
from synth.erasure.position import SweptLog, read_swept_patiently, write_swept
from synth.errors import Permanent, SynthError, Transient
from synth.events import FileDeleted, JobDeleted
from synth.events.catalogue import CATALOGUE
from synth.jobs.lifecycle import TERMINAL_FACTS
from synth.runtime import logs

log = logs.get("sweep")

_INTERVAL_S = 0.5
#: Seconds between two tries of a deletion that cannot be erased yet: a live job may need its blobs for days.
_FIRST_DELAY_S = 0.5
_LAST_DELAY_S = 60.0
#: Erasures that are under way at one time.
_AT_ONCE = 16
#: The most events of a job that are read before they are erased.
_MOST = 1024
#: The dead letters that gateways leave of deletions which a full log does not take.
_LETTERS = [f"dead.gateway.{type_}.*.*" for type_ in sorted(TOMBSTONES)]
_ERRORS = (SynthError, NatsError, TimeoutError, OSError, BaseError, msgspec.DecodeError)


@dataclass
class _Deleted:
    """A deletion whose events are to be erased. seq: its own. due: when to look at it, on the monotonic clock.

    erased: once; events may have been appended since.
    """

    org: str
    key: str
    seq: int
    due: float = 0.0
    delay: float = _FIRST_DELAY_S
    erased: bool = False


@dataclass
class Sweeper:
    """Erases the events of deleted jobs and files."""

    bus: Connection
    blobs: BlobStore
    late_s: float = 600.0
    """Seconds after an erasure in which a service may append an event of the deleted job."""
    _deleted: dict[str, _Deleted] = field(default_factory=dict[str, _Deleted])
    _followed: int = 0
    _stored: SweptLog | None = None
    _fails: bool = False

    async def run(self) -> NoReturn:
        """Follow the deletions, and erase what can be erased, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_letters())
            self._stored = await read_swept_patiently(self.bus)
            tasks.create_task(self._follow_deletions(self._stored.seq))
            while True:
                await self._erase_due()
                await self._store_position()
                await asyncio.sleep(_INTERVAL_S)

    async def _follow_deletions(self, after: int) -> None:
        deletions = [f"{type_}.*.*" for type_ in sorted(TOMBSTONES)]
        async for message in _follow(self.bus, EVENTS, deletions, after=after):
            _, _, org, key = message.subject.split(".")
            self._followed = delivery_numbers(message.reply)[0]
            self._deleted[key] = _Deleted(org, key, self._followed)

    async def _store_position(self) -> None:
        """Store the sequence up to which every deletion is erased."""
        done = min((deleted.seq - 1 for deleted in self._deleted.values()), default=self._followed)
        if self._stored is None or done <= self._stored.seq:
            return
        swept = SweptLog(stream=self._stored.stream, seq=done)
        try:
            await write_swept(self.bus, swept)
        except _ERRORS as error:
            self._note(error)
        else:
            self._stored = swept

    async def _follow_letters(self) -> None:
        async for message in _follow(self.bus, DEAD, _LETTERS):
            try:
                await self._make_room(message)
            except _ERRORS:
                # The letter stays, and is read again at the next start.
                log.exception("a deletion has no room in the log", subject=message.subject)

    async def _erase_due(self) -> None:
        due = [deleted for deleted in self._deleted.values() if deleted.due <= time.monotonic()]
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(self._erase(deleted) for deleted in due[first : first + _AT_ONCE]))

    async def _erase(self, deleted: _Deleted) -> None:
        try:
            done = await self._try_to_erase(deleted)
        except _ERRORS as error:
            self._note(error, key=deleted.key)
            done = False
        else:
            self._note(None)
        if done and not deleted.erased:
            deleted.erased, deleted.due = True, time.monotonic() + self.late_s
        elif not done:
            deleted.due = time.monotonic() + deleted.delay
            deleted.delay = min(2 * deleted.delay, _LAST_DELAY_S)
        elif self._deleted[deleted.key] is deleted:
            del self._deleted[deleted.key]

    def _note(self, error: BaseException | None, **about: str) -> None:
        """Log a failure, and its end, once each."""
        if error is not None and not self._fails:
            log.warning("what was deleted cannot be erased now", error=str(error), **about)
        elif error is None and self._fails:
            log.info("what was deleted is erased again")
        self._fails = error is not None

    async def _try_to_erase(self, deleted: _Deleted) -> bool:
        """Erase the events of one job or file; returns whether none is left."""
        if deleted.key.startswith("job_"):
            return await self._erase_job(deleted.org, deleted.key)
        doomed = [event for event in await self._read(deleted.org, deleted.key) if event.seq < deleted.seq]
        # The file may be there again since.
        named = NamedBlobs()
        for event in doomed:
            named.add(event.key, event.event)
        for blob in named.digests:
            if await self.blobs.written_at(f"blob://{blob}") is not None:
                return False
        await self._erase_events(deleted.org, deleted.key, [event.seq for event in doomed])
        return True

    async def _erase_job(self, org: str, job: str) -> bool:
        doomed: list[int] = []
        # Events of a job after its deletion are of a service that had not noticed it.
        async for message in read_stream(self.bus.nc, [f"*.*.{org}.{job}"], headers_only=True):
            if type_of(message.subject) in TOMBSTONES:
                continue
            if not doomed and await self.blobs.uris_below(f"jobs/{job}"):
                return False
            doomed.append(delivery_numbers(message.reply)[0])
            if len(doomed) == _MOST:
                await self._erase_events(org, job, doomed)
                doomed.clear()
        await self._erase_events(org, job, doomed)
        return True

    async def _erase_events(self, org: str, key: str, sequences: list[int]) -> None:
        if sequences:
            await erase_messages(self.bus, EVENTS, sequences, lambda _: None)
            log.info("events erased", org=org, key=key, events=len(sequences))

    async def _read(self, org: str, key: str) -> list[Recorded]:
        """Return the events of a job or a file that are to be erased once it is deleted."""
        messages = read_stream(self.bus.nc, [f"*.*.{org}.{key}"])
        events = [from_delivery(message) async for message in messages]
        return [event for event in events if event.type not in TOMBSTONES]

    async def _make_room(self, letter: Msg) -> None:
        """Append a deletion to a log that was full: erase events of the deleted job or file until the log takes it."""
        subject = letter.subject.removeprefix("dead.gateway.")
        _, _, org, key = subject.split(".")
        fact, events = decode(type_of(subject), letter.data), await self._read(org, key)
        if isinstance(fact, JobDeleted):
            id, last = "deleted", next((event for event in events if event.type in TERMINAL_FACTS), None)
        elif isinstance(fact, FileDeleted):
            id, last = f"{fact.uploaded_seq}", next((event for event in events if event.seq == fact.uploaded_seq), None)
        else:
            raise Permanent(f"{letter.subject} is no deletion")
        # Without its last fact, it was deleted and erased before.
        if last is not None and not await self._give_room(subject, letter.data, id, events, last):
            raise Transient("all that may be erased is")
        await erase_messages(self.bus, DEAD, [delivery_numbers(letter.reply)[0]], lambda _: None)

    async def _give_room(self, subject: str, body: bytes, id: str, events: list[Recorded], last: Recorded) -> bool:
        """Erase events, the newest first and never `last`, until the log takes the deletion; returns whether it has."""
        type_ = type_of(subject)
        headers = {MSG_ID: f"{subject}:{id}", SCHEMA: f"{CATALOGUE[type_].version}", "Content-Type": "application/json"}
        for event in [*(event for event in reversed(events) if event is not last), None]:
            if await self._append(subject, body, headers):
                return True
            if event is not None:
                await erase_messages(self.bus, EVENTS, [event.seq], lambda _: None)
        return False

    async def _append(self, subject: str, body: bytes, headers: dict[str, str]) -> bool:
        """Append a deletion, once; returns whether the log has taken it."""
        try:
            await self.bus.js.publish(subject, body, timeout=PUBLISH_TIMEOUT_S, stream=EVENTS, headers=dict(headers))
        except ServiceUnavailableError as error:
            log.info("the log is full", subject=subject, error=str(error))
            return False
        return True


async def _follow(bus: Connection, stream: str, filters: list[str], *, after: int = 0) -> AsyncGenerator[Msg]:
    """Yield each message on these subjects after a sequence, for ever."""
    follower = StreamFollower(bus.nc, filters, stream=stream, after=after)
    try:
        async with aclosing(follower.messages()) as messages:
            async for message in messages:
                yield message
    finally:
        await follower.close()

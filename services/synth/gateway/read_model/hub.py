"""The hub: this process's only reader of the whole log. It projects every event, then fans it out in memory.

Invariants. An event reaches a subscriber only after the read model has it, and once: a model that is rebuilt from its
snapshot or the log, because its file was damaged, sends nothing until it has its old position again. The watchers of a
job share one feed: a slow one reads the log again from its own position, so no other waits for it and it misses
nothing. A thousand watchers cost the bus one consumer, and one read of each part of the log that they begin with.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from synth.api.limits import MAX_EVENTS
from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.errors import Permanent, Transient
from synth.gateway import metrics
from synth.gateway.background import run_until
from synth.gateway.read_model.database_file import is_no_space
from synth.gateway.read_model.event_log import LogSize, holds_log_of, read_page, read_size
from synth.gateway.read_model.snapshot import begin_anew
from synth.gateway.read_model.store import ReadModel
from synth.gateway.streams.feed import Encode, EventFeed, Reader
from synth.gateway.streams.memory import EndedStreams, StreamMemory
from synth.gateway.streams.pace import Pace
from synth.runtime import logs

log = logs.get("hub")

PROJECTION_TIMEOUT_S = 10.0
_MAX_BATCH = 256
_MAX_BEHIND = 4096
_LOG_CHECK_S = 5.0
_NO_SPACE_PAUSE_S = 1.0
#: A client that polls a job's events requests them again within this time.
_ASKED_S = 60.0
#: The largest part of the time that checks of the file for requests may take.
_CHECKING_SHARE = 0.1
#: Bytes of the log that a stream reads at a time, except a single event that is larger.
BLOCK_BYTES = 64 << 10
#: Reads of the log for event streams at a time: few enough that the bus serves each before its deadline.
_PAST_READS = 16


class Hub:
    """The reader of the log, which projects it, fans events out, and lets a write wait for its own event."""

    def __init__(self, bus: Connection, model: ReadModel, *, stream_end: int, stream_buffer: int) -> None:
        """Create a hub for the model.

        stream_end: the log's last sequence now; until it is projected the hub is behind. stream_buffer: bytes of events
        that all event streams keep in memory.
        """
        self.model = model
        self._bus = bus
        self._stream_end = stream_end
        self._stream_memory = StreamMemory(stream_buffer)
        self.ended_streams = EndedStreams()
        self.pace = Pace()
        self._unprojected: asyncio.Queue[Recorded] = asyncio.Queue(_MAX_BEHIND)
        self._feeds: defaultdict[tuple[str, str | None], dict[str, EventFeed]] = defaultdict(dict)
        self._past_reads = asyncio.Semaphore(_PAST_READS)
        self.past_reads_waiting = 0
        """Reads of the log for event streams that wait for others."""
        self._asked: dict[str, float] = {}
        self._fanned_out = 0
        self._advanced = asyncio.Event()
        self.lag = max(0, stream_end - model.applied)
        """Events of the log that are not projected yet."""
        self._problem = ""
        self._damaged, self._emptied = asyncio.Event(), asyncio.Event()
        self._checking: asyncio.Task[str | None] | None = None
        self._check_due = 0.0
        self._closed = False

    @property
    def complete(self) -> bool:
        """Return whether the model has every event that the log had at the start, or when damage was found."""
        return self.model.applied >= self._stream_end and not self._damaged.is_set()

    @property
    def caught_up(self) -> bool:
        """Return whether the model is complete, and close behind the log now."""
        return self.complete and self.lag < _MAX_BEHIND and not self._problem

    def check(self) -> str | None:
        """Return the problem, for `/healthz`; None if the model has caught up."""
        if self._problem:
            return self._problem
        return None if self.caught_up else f"the read model is {self.lag} events behind"

    async def read_log(self) -> None:
        """Read the log in order from the model's position, for ever; after damage, from its snapshot or the start."""
        while True:
            await run_until(self._damaged, self._read())
            # No event that was read for the old file may reach the new one.
            while not self._unprojected.empty():
                self._unprojected.get_nowait()
            self._stream_end = max(self._stream_end, self.model.applied)
            await self._begin_anew()
            self.lag = self._stream_end - self.model.applied
            self._damaged.clear()
            self._emptied.set()

    async def _begin_anew(self) -> None:
        while True:
            try:
                return await begin_anew(self._bus, self.model)
            except Transient as error:
                log.warning("the snapshot cannot be compared with the log now", error=str(error))
                await asyncio.sleep(_LOG_CHECK_S)

    async def _read(self) -> None:
        async for event in follow(self._bus, [">"], after=self.model.applied, unreadable_too=True):
            await self._unprojected.put(event)

    async def project(self) -> None:
        """Project read events and fan them out, for ever. If the model is behind, many events share a transaction."""
        while True:
            batch = [await self._unprojected.get()]
            while len(batch) < _MAX_BATCH and not self._unprojected.empty():
                batch.append(self._unprojected.get_nowait())
            if not await self._apply(batch):
                continue
            self.lag = batch[-1].pending + self._unprojected.qsize()
            metrics.PROJECTOR_LAG.set(self.lag)
            metrics.PROJECTED.inc(len(batch))
            self._wake_waiters()
            for event in batch:
                self._fan_out(event)
            # A long catch-up must not keep requests waiting.
            await asyncio.sleep(0)

    async def check_file(self, every_s: float) -> None:
        """Check the model's file for damage at this interval, for ever."""
        while True:
            await asyncio.sleep(every_s)
            await self.find_damage()

    async def check_log(self, note_size: Callable[[LogSize], None]) -> None:
        """Check the size of the log, and whether the model was projected from it, for ever.

        Raises `Permanent` for another log, for example a restored earlier state. Everything in this process's memory
        is from the old log, so the process must start again.
        """
        while True:
            try:
                note_size(await read_size(self._bus))
                held = await holds_log_of(self._bus, self.model)
                await asyncio.sleep(_LOG_CHECK_S)
                # Check twice: a server that has just become the leader may not know all of the log yet.
                if held or await holds_log_of(self._bus, self.model):
                    continue
            except Transient as error:
                log.warning("the log cannot be compared now", error=str(error))
                await asyncio.sleep(_LOG_CHECK_S)
                continue
            raise Permanent("the log is not the one that the read model was made of; the gateway must start anew")

    async def find_damage_if_due(self) -> str | None:
        """Call `find_damage` for a caller that may repeat it often: return None if the last check was a moment ago."""
        return await self.find_damage() if time.monotonic() >= self._check_due else None

    async def find_damage(self) -> str | None:
        """Check the current state of the model's file; return its damage, None if there is none.

        A damaged file is emptied before this returns, and the log is projected again.
        """
        # A running check may have read the file before it was damaged.
        under_way = self._checking
        if under_way is not None and not under_way.done() and (damage := await asyncio.shield(under_way)) is not None:
            return damage
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_file())
        return await asyncio.shield(self._checking)

    async def wait_until_complete(self, *, timeout: float) -> None:
        """Wait until the model is complete. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            while not self.complete:
                await self._advanced.wait()

    async def wait_until_applied(self, seq: int, *, timeout: float = PROJECTION_TIMEOUT_S) -> None:
        """Wait until the model has the event of this sequence. Raises `TimeoutError`, also if the gateway ends."""
        async with asyncio.timeout(timeout):
            while self.model.applied < seq:
                if self._closed:
                    raise TimeoutError("the gateway ends")
                await self._advanced.wait()

    @contextmanager
    def watch(self, org: str, key: str | None, *, after: int, words: str, encode: Encode) -> Iterator[Reader]:
        """Read an organisation's events after a sequence, with `key` one job's, and then new events.

        words: the name of the encoding; watchers with the same encoding share a feed.
        """
        address = (org, key)
        feed = self._feeds[address].get(words)
        if feed is None:
            read_log = partial(self._read_past, f"*.*.{org}.{key or '*'}")
            passed_on = max(self._fanned_out, self.model.applied)
            feed = self._feeds[address][words] = EventFeed(read_log, encode, self._stream_memory, after=passed_on)
            feed.closed = self._closed
        feed.readers += 1
        metrics.STREAMS_OPEN.inc()
        try:
            yield Reader(feed, after)
        finally:
            metrics.STREAMS_OPEN.dec()
            self.ended_streams.note()
            feed.readers -= 1
            if not feed.readers:
                feed.close()
                del self._feeds[address][words]
                if not self._feeds[address]:
                    del self._feeds[address]

    async def _read_past(self, subject: str, after: int) -> tuple[list[Recorded], bool]:
        """Read a block of the log, after the read model has all of the block's events.

        Raises `Transient`, also if the gateway ends.
        """
        self.past_reads_waiting += 1
        try:
            await self._past_reads.acquire()
        finally:
            self.past_reads_waiting -= 1
        metrics.STREAM_READS.inc()
        try:
            page = await read_page(self._bus, subject, after=after, limit=MAX_EVENTS, max_bytes=BLOCK_BYTES, whole=True)
        finally:
            self._past_reads.release()
        while page.events and self.model.applied < page.events[-1].seq:
            if self._closed:
                raise Transient("the gateway ends")
            await self._advanced.wait()
        return page.events, page.more

    def note_asked(self, job_id: str) -> None:
        """Note that a client has requested a page of this job's events, and may poll for new events."""
        self._asked[job_id] = time.monotonic()

    def watched_jobs(self) -> set[str]:
        """Return the jobs whose events a client follows here, by a stream or by polling."""
        since = time.monotonic() - _ASKED_S
        self._asked = {id: at for id, at in self._asked.items() if at > since}
        return {key for _, key in self._feeds if key is not None} | self._asked.keys()

    def close(self) -> None:
        """End every open stream, and every stream that is opened later."""
        self._closed = True
        self._wake_waiters()
        for feeds in self._feeds.values():
            for feed in feeds.values():
                feed.close()

    def _wake_waiters(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def _apply(self, batch: list[Recorded]) -> bool:
        """Project a batch when there is room for it; return False if the model was damaged, and is empty now."""
        emptied = self.model.emptied
        while self.model.emptied == emptied:
            try:
                self.model.apply(batch)
            except Exception as error:
                if is_no_space(error):
                    self._problem = f"no room for the read model ({error})"
                    log.error("the read model cannot be written", error=str(error))
                    await asyncio.sleep(_NO_SPACE_PAUSE_S)
                    continue
                if await self.find_damage() is None:
                    raise
                return False
            self._problem = ""
            return True
        # The file was replaced during the wait for room, so the batch is not the first of the new file.
        return False

    async def _check_file(self) -> str | None:
        begun = time.monotonic()
        try:
            damage = await asyncio.to_thread(self.model.find_damage)
        except sqlite3.Error as error:
            log.warning("the read model cannot be checked now", error=str(error))
            return None
        finally:
            ended = time.monotonic()
            self._check_due = ended + (ended - begun) / _CHECKING_SHARE
        if damage is not None:
            log.error("the read model is damaged, projecting the log again", damage=damage)
            metrics.REBUILDS.inc()
            self._emptied.clear()
            self._damaged.set()
            await self._emptied.wait()
        return damage

    def _fan_out(self, event: Recorded) -> None:
        if event.seq <= self._fanned_out:
            return
        self._fanned_out = event.seq
        for address in ((event.org, event.key), (event.org, None)):
            for feed in self._feeds.get(address, {}).values():
                feed.append(event)

"""The hub: this process's one reader of the whole log. It projects every event, then fans it out in memory.

Invariants. An event reaches a watcher only when the read model has it. A watcher's queue is bounded: one that is too
slow loses its queue, is told so, and reads the log again from its own cursor, so nobody waits for it and it misses
nothing. A thousand watchers cost the bus one consumer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.gateway.middleware import metrics
from synth.gateway.read_model.event_log import view_of
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import TERMINAL, TRANSITIONS
from synth.runtime import logs

log = logs.get("hub")

_BATCH = 256
_READ_AHEAD = 4096


#: Facts after which nothing is decided about a job any more.
_TERMINAL_FACTS = frozenset(fact for (_, fact), state in TRANSITIONS.items() if state in TERMINAL)


class Frame(NamedTuple):
    """An event as it goes over the wire. ends: it is its job's terminal fact."""

    seq: int
    data: bytes
    ends: bool


class Watcher:
    """One client's queue of frames not sent yet."""

    def __init__(self, limit: int) -> None:
        self.lagged = False
        self.closed = False
        self._limit = limit
        self._frames: deque[Frame] = deque()
        self._news = asyncio.Event()

    def offer(self, frame: Frame) -> None:
        """Queue a frame, or give up the queue when it is full."""
        if self.lagged:
            return
        if len(self._frames) >= self._limit:
            self._frames.clear()
            self.lagged = True
            metrics.STREAMS_LAGGED.inc()
        else:
            self._frames.append(frame)
        self._news.set()

    def resume(self) -> None:
        """Queue again: called before the log is read again, so that nothing falls between the two."""
        self._frames.clear()
        self.lagged = False

    def take(self) -> list[Frame]:
        """Everything that is queued."""
        frames = list(self._frames)
        self._frames.clear()
        self._news.clear()
        return frames

    def close(self) -> None:
        """The process ends: wake the client's stream so that it ends too."""
        self.closed = True
        self._news.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for news; False when there was none in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class Hub:
    """Reads, projects and fans out; also what read-your-writes waits on."""

    def __init__(self, bus: Connection, model: ReadModel, *, stream_end: int, stream_buffer: int) -> None:
        """stream_end: the log's last sequence now; until it is projected the hub is behind."""
        self.model = model
        self._bus = bus
        self._stream_end = stream_end
        self._buffer = stream_buffer
        self._read: asyncio.Queue[Recorded] = asyncio.Queue(_READ_AHEAD)
        self._watchers: defaultdict[tuple[str, str | None], set[Watcher]] = defaultdict(set)
        self._advanced = asyncio.Event()
        self.lag = max(0, stream_end - model.applied)
        """Events of the log that are not projected yet."""
        self._closed = False

    @property
    def current(self) -> bool:
        """Whether the model has caught up with the log as it was at the start, and is close behind it now."""
        return self.model.applied >= self._stream_end and self.lag < _READ_AHEAD

    def check(self) -> str | None:
        """For `/healthz`."""
        return None if self.current else f"the read model is {self.lag} events behind"

    async def read(self) -> None:
        """Read the log in order from where the model stands, for ever."""
        async for event in follow(self._bus.nc, [">"], after=self.model.applied):
            await self._read.put(event)

    async def project(self) -> None:
        """Project what was read, and fan it out, for ever. Behind, many events share a transaction."""
        while True:
            batch = [await self._read.get()]
            while len(batch) < _BATCH and not self._read.empty():
                batch.append(self._read.get_nowait())
            self.model.apply(batch)
            self.lag = batch[-1].pending + self._read.qsize()
            metrics.PROJECTOR_LAG.set(self.lag)
            metrics.PROJECTED.inc(len(batch))
            self._advanced.set()
            self._advanced = asyncio.Event()
            for event in batch:
                self._fan_out(event)
            # A long catch-up must not keep requests waiting.
            await asyncio.sleep(0)

    async def reached(self, seq: int, *, timeout: float) -> None:
        """Wait until the model has the event of this sequence. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            while self.model.applied < seq:
                await self._advanced.wait()

    @contextmanager
    def watch(self, org: str, key: str | None) -> Iterator[Watcher]:
        """Be told of an organisation's events, of one job's with `key`; from now on, not of the past."""
        watcher, place = Watcher(self._buffer), (org, key)
        watcher.closed = self._closed
        self._watchers[place].add(watcher)
        metrics.STREAMS_OPEN.inc()
        try:
            yield watcher
        finally:
            metrics.STREAMS_OPEN.dec()
            self._watchers[place].discard(watcher)
            if not self._watchers[place]:
                del self._watchers[place]

    def close(self) -> None:
        """End every open stream, and each that is still opened."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.close()

    def _fan_out(self, event: Recorded) -> None:
        watchers = [w for place in ((event.org, event.key), (event.org, None)) for w in self._watchers.get(place, ())]
        if watchers:
            frame = frame_of(event)
            for watcher in watchers:
                watcher.offer(frame)


def frame_of(event: Recorded) -> Frame:
    """The server-sent event of an event: `id` is its sequence, `event` its type, `data` its JSON on one line."""
    data = msgspec.json.encode(view_of(event))
    text = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), data)
    return Frame(event.seq, text, event.type in _TERMINAL_FACTS)

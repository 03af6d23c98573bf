"""The hub: this process's one reader of the whole log. It projects every event, then fans it out in memory.

Invariants. An event reaches a subscriber only when the read model has it. A subscriber's queue is bounded: a slow one
loses its queue, is told so, and reads the log again from its own cursor, so nobody waits for it and it misses nothing.
A thousand subscribers cost the bus one consumer.
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
from synth.gateway import metrics
from synth.gateway.read_model.event_log import to_view
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import TERMINAL_FACTS
from synth.runtime import logs

log = logs.get("hub")

PROJECTION_TIMEOUT_S = 10.0
_MAX_BATCH = 256
_MAX_BEHIND = 4096


class Frame(NamedTuple):
    """An event as it goes over the wire. ends: it is its job's terminal fact."""

    seq: int
    data: bytes
    ends: bool


class Subscriber:
    """One client's queue of frames not sent yet."""

    def __init__(self, limit: int) -> None:
        self.lagged = False
        self.closed = False
        self._limit = limit
        self._frames: deque[Frame] = deque()
        self._wakeup = asyncio.Event()

    def enqueue(self, frame: Frame) -> None:
        """Queue a frame; a full queue is dropped, and the subscriber has lagged."""
        if self.lagged:
            return
        if len(self._frames) >= self._limit:
            self._frames.clear()
            self.lagged = True
            metrics.STREAMS_LAGGED.inc()
        else:
            self._frames.append(frame)
        self._wakeup.set()

    def reset(self) -> None:
        """Start queueing anew. Call it before reading the log again, so that no event falls between the two."""
        self._frames.clear()
        self.lagged = False

    def drain(self) -> list[Frame]:
        """Take every queued frame."""
        frames = list(self._frames)
        self._frames.clear()
        self._wakeup.clear()
        return frames

    def close(self) -> None:
        """End the subscription, and wake the client's stream."""
        self.closed = True
        self._wakeup.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for a frame, a lag or the end; False when none came in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._wakeup.wait()
        except TimeoutError:
            return False
        return True


class Hub:
    """Reads the log, projects it into the read model, and fans events out; a write waits here for its own event."""

    def __init__(self, bus: Connection, model: ReadModel, *, stream_end: int, stream_buffer: int) -> None:
        """stream_end: the log's last sequence now; until it is projected the hub is behind."""
        self.model = model
        self._bus = bus
        self._stream_end = stream_end
        self._buffer = stream_buffer
        self._unprojected: asyncio.Queue[Recorded] = asyncio.Queue(_MAX_BEHIND)
        self._subscribers: defaultdict[tuple[str, str | None], set[Subscriber]] = defaultdict(set)
        self._advanced = asyncio.Event()
        self.lag = max(0, stream_end - model.applied)
        """Events of the log that are not projected yet."""
        self._closed = False

    @property
    def caught_up(self) -> bool:
        """Whether the model has caught up with the log as it was at the start, and is close behind it now."""
        return self.model.applied >= self._stream_end and self.lag < _MAX_BEHIND

    def check(self) -> str | None:
        """What is wrong, for `/healthz`; None when the model has caught up."""
        return None if self.caught_up else f"the read model is {self.lag} events behind"

    async def read_log(self) -> None:
        """Read the log in order from where the model stands, for ever."""
        async for event in follow(self._bus.nc, [">"], after=self.model.applied):
            await self._unprojected.put(event)

    async def project(self) -> None:
        """Project what was read, and fan it out, for ever. Behind, many events share a transaction."""
        while True:
            batch = [await self._unprojected.get()]
            while len(batch) < _MAX_BATCH and not self._unprojected.empty():
                batch.append(self._unprojected.get_nowait())
            self.model.apply(batch)
            self.lag = batch[-1].pending + self._unprojected.qsize()
            metrics.PROJECTOR_LAG.set(self.lag)
            metrics.PROJECTED.inc(len(batch))
            self._advanced.set()
            self._advanced = asyncio.Event()
            for event in batch:
                self._fan_out(event)
            # A long catch-up must not keep requests waiting.
            await asyncio.sleep(0)

    async def wait_until_applied(self, seq: int, *, timeout: float = PROJECTION_TIMEOUT_S) -> None:
        """Wait until the model has the event of this sequence. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            while self.model.applied < seq:
                await self._advanced.wait()

    @contextmanager
    def subscribe(self, org: str, key: str | None) -> Iterator[Subscriber]:
        """Subscribe to an organisation's events, with `key` to one job's, from now on."""
        subscriber, address = Subscriber(self._buffer), (org, key)
        subscriber.closed = self._closed
        self._subscribers[address].add(subscriber)
        metrics.STREAMS_OPEN.inc()
        try:
            yield subscriber
        finally:
            metrics.STREAMS_OPEN.dec()
            self._subscribers[address].discard(subscriber)
            if not self._subscribers[address]:
                del self._subscribers[address]

    def close(self) -> None:
        """End every open stream, and each that is opened from now on."""
        self._closed = True
        for subscribers in self._subscribers.values():
            for subscriber in subscribers:
                subscriber.close()

    def _fan_out(self, event: Recorded) -> None:
        subscribers = [
            s for address in ((event.org, event.key), (event.org, None)) for s in self._subscribers.get(address, ())
        ]
        if subscribers:
            frame = to_frame(event)
            for subscriber in subscribers:
                subscriber.enqueue(frame)


def to_frame(event: Recorded) -> Frame:
    """The server-sent event of an event: `id` is its sequence, `event` its type, `data` its JSON on one line."""
    data = msgspec.json.encode(to_view(event))
    text = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), data)
    return Frame(event.seq, text, event.type in TERMINAL_FACTS)

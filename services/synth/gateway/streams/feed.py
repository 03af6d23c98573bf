"""A feed: the events of a job or of an organisation, read and encoded once for all their watchers.

Invariants. A reader gets each event after its position once, in order. The newest events are kept in memory; a reader
that is behind them reads the log, in blocks that readers at the same place share. The memory of all feeds is bounded by
bytes for any number of readers: no reader has its own queue or waits for another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from synth.bus.recorded import Recorded
from synth.gateway import metrics
from synth.gateway.streams.memory import StreamMemory
from synth.jobs.lifecycle import TERMINAL_FACTS

#: A function that encodes an event; b"" for an event that its watchers do not see.
Encode = Callable[[Recorded], bytes]
#: A function that reads the log after a sequence, up to the read model's position: events, and whether there are more.
ReadLog = Callable[[int], Awaitable[tuple[list[Recorded], bool]]]


class Frame(NamedTuple):
    """An encoded event. ends: whether it is its job's terminal fact."""

    seq: int
    time: datetime
    data: bytes
    ends: bool


@dataclass(frozen=True)
class _Block:
    """Every event after `after`, up to `until`."""

    after: int
    until: int
    frames: list[Frame]


class EventFeed:
    """The newest events, and blocks of past events."""

    def __init__(self, read_log: ReadLog, encode: Encode, memory: StreamMemory, *, after: int) -> None:
        """Create an empty feed. after: the sequence up to which the hub has fanned out every event."""
        self.after = after
        self.closed = False
        self.readers = 0
        self._read_log = read_log
        self._encode = encode
        self._memory = memory
        self._frames: deque[Frame] = deque()
        self._appended = asyncio.Event()
        self._blocks: deque[_Block] = deque()
        self._reads: dict[int, asyncio.Task[_Block]] = {}

    def append(self, event: Recorded) -> None:
        """Add an event, and wake the readers."""
        frame = self._to_frame(event)
        self._frames.append(frame)
        self._memory.keep(self, len(frame.data), self._drop_frame)
        self._wake()

    def close(self) -> None:
        """End the feed, and wake its readers."""
        self.closed = True
        for read in self._reads.values():
            read.cancel()
        self._frames.clear()
        self._blocks.clear()
        self._memory.forget(self)
        self._wake()

    def has_newer(self, position: int) -> bool:
        """Return whether there are newer events than a position."""
        return bool(self._frames) and self._frames[-1].seq > position

    def newer(self, position: int) -> list[Frame]:
        """Return the newest events after a position, which is not before `after`."""
        frames: list[Frame] = []
        for frame in reversed(self._frames):
            if frame.seq <= position:
                break
            frames.append(frame)
        return frames[::-1]

    async def wait(self, timeout: float) -> None:
        """Wait for an event or for the end. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            await self._appended.wait()

    async def past(self, position: int, timeout: float) -> tuple[list[Frame], int]:
        """Return events of the log after a position, and the position after them.

        Raises `TimeoutError`, after which the read continues, and `Transient`.
        """
        block = next((block for block in self._blocks if block.after <= position < block.until), None)
        if block is None:
            read = self._reads.get(position)
            if read is None:
                read = self._reads[position] = asyncio.create_task(self._read_block(position))
                read.add_done_callback(lambda task: self._end_read(position, task))
            async with asyncio.timeout(timeout):
                block = await asyncio.shield(read)
        return [frame for frame in block.frames if frame.seq > position], block.until

    async def _read_block(self, position: int) -> _Block:
        passed_on = self.after
        events, more = await self._read_log(position)
        frames = [self._to_frame(event) for event in events]
        until = frames[-1].seq if frames else position
        if not more:
            # The log has no more events now: the feed has every event after `passed_on`, or will get it.
            until = max(until, passed_on)
        return _Block(position, until, frames)

    def _end_read(self, position: int, task: asyncio.Task[_Block]) -> None:
        del self._reads[position]
        if task.cancelled() or task.exception() is not None or self.closed:
            return
        block = task.result()
        self._blocks.append(block)
        self._memory.keep(self, sum(len(frame.data) for frame in block.frames), self._drop_block)

    def _drop_frame(self) -> None:
        if self._frames:
            self.after = self._frames.popleft().seq

    def _drop_block(self) -> None:
        if self._blocks:
            self._blocks.popleft()

    def _to_frame(self, event: Recorded) -> Frame:
        return Frame(event.seq, event.time, self._encode(event), event.type in TERMINAL_FACTS)

    def _wake(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()


class Reader:
    """One watcher's place in a feed. position: the sequence after which it continues."""

    def __init__(self, feed: EventFeed, position: int) -> None:
        self.position = position
        self._feed = feed
        self._was_at_present = False

    @property
    def closed(self) -> bool:
        """Return whether the feed has ended."""
        return self._feed.closed

    @property
    def at_present(self) -> bool:
        """Return whether it has read the log's events, so that only the newest events of the feed may follow."""
        return self.position >= self._feed.after

    async def read(self, timeout: float) -> Sequence[Frame] | None:
        """Return the next events; empty if the log had none, None if none arrived in time. Raises `Transient`."""
        try:
            if not self.at_present:
                if self._was_at_present:
                    metrics.STREAMS_LAGGED.inc()
                    self._was_at_present = False
                frames, self.position = await self._feed.past(self.position, timeout)
                return frames
            self._was_at_present = True
            if not self._feed.has_newer(self.position):
                await self._feed.wait(timeout)
            frames = self._feed.newer(self.position)
        except TimeoutError:
            return None
        if self.at_present and frames:
            self.position = frames[-1].seq
            return frames
        return []

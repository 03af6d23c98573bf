"""Which jobs were cancelled while they are verified: heard by one follower for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.bus.replay import follow
from synth.bus.server.topology import EVENTS
from synth.events import JobWithdrawn
from synth.events.catalogue import spec_of


class Withdrawals:
    """The jobs that this process verifies; verification stops for a job that is withdrawn."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], asyncio.Event] = {}

    @contextmanager
    def watch(self, org: str, job_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when this job is withdrawn. Read the job's log after this, to miss nothing."""
        withdrawn = self._watched.setdefault((org, job_id), asyncio.Event())
        try:
            yield withdrawn
        finally:
            self._watched.pop((org, job_id), None)

    async def follow(self, bus: Connection) -> None:
        """Follow every withdrawal of a job from now on, for ever."""
        subject = f"{spec_of(JobWithdrawn).type}.>"
        async with aclosing(follow(bus, [subject], after=await _end(bus), unreadable_too=True)) as facts:
            async for fact in facts:
                withdrawn = self._watched.get((fact.org, fact.key))
                if withdrawn is not None:
                    withdrawn.set()


async def _end(bus: Connection) -> int:
    while True:
        try:
            return (await bus.js.stream_info(EVENTS)).state.last_seq
        except (NatsError, TimeoutError):
            # Jobs that are withdrawn before it answers are verified to their end, and then not appended to.
            await asyncio.sleep(1.0)

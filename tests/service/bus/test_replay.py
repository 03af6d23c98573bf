"""A finite replay ends where the leader of the stream says that it ends, whatever the server in between has."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from synth.bus.access.client import SERVICE_API
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.bus.replay import read_stream, replay
from synth.events import Heartbeat
from synth.ids import new_job_id, new_org_id

CREATE, LAST = f"{SERVICE_API}.CONSUMER.CREATE.", f"{SERVICE_API}.STREAM.MSG.GET."


class Lagging:
    """A client whose server has what is in the log up to a sequence, and for so many readings no more."""

    def __init__(self, nc: Client, *, has: int, readings: int) -> None:
        self._nc, self._has, self._left = nc, has, readings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nc, name)

    async def request(self, subject: str, payload: bytes, **more: Any) -> Msg:
        if not subject.startswith(CREATE) or not self._left:
            return await self._nc.request(subject, payload, **more)
        self._left -= 1
        config = json.loads(payload)
        begins = config["config"]["opt_start_seq"]
        # The server itself delivers to the end: what it does not have yet is what no consumer is made for.
        if begins > self._has:
            return replace(await self._nc.request(f"{SERVICE_API}.STREAM.INFO.EVENTS", b""), data=b'{"num_pending": 0}')
        return await self._nc.request(subject, payload, **more)


async def facts(bus: Connection, count: int) -> tuple[list[str], list[int]]:
    """Facts of a job of their own: its subject, and their sequences."""
    org, job = new_org_id(), new_job_id()
    publisher = Publisher(bus)
    fact = Heartbeat(state="started")
    seqs = [await publisher.once(fact, org=org, key=job, id=str(n)) for n in range(count)]
    return [f"watch.heartbeat.{org}.{job}"], seqs


async def test_a_replay_waits_for_a_server_that_lags_behind_the_leader(bus_as):
    bus = await bus_as("gateway")
    subjects, seqs = await facts(bus, 5)
    lagging = Lagging(bus.nc, has=0, readings=3)
    assert [recorded.seq for recorded in await replay(replace(bus, nc=lagging), subjects)] == seqs  # type: ignore[arg-type]
    behind = Lagging(bus.nc, has=seqs[2], readings=3)
    assert [fact.seq for fact in await replay(replace(bus, nc=behind), subjects, after=seqs[1])] == seqs[2:]  # type: ignore[arg-type]


async def test_a_replay_ends_where_the_last_message_was_deleted_meanwhile(bus_as, bus_admin):
    bus = await bus_as("gateway")
    subjects, seqs = await facts(bus, 3)

    class Deleting(Lagging):
        deleted = False

        async def request(self, subject: str, payload: bytes, **more: Any) -> Msg:
            reply = await super().request(subject, payload, **more)
            if subject.startswith(LAST) and not self.deleted:
                self.deleted = await bus_admin.js.delete_msg("EVENTS", seqs[-1])
            return reply

    async with asyncio.timeout(20):
        found = await replay(replace(bus, nc=Deleting(bus.nc, has=0, readings=0)), subjects)  # type: ignore[arg-type]
    assert [recorded.seq for recorded in found] == seqs[:-1]


async def test_what_is_written_while_it_reads_does_not_keep_a_replay_going(bus_as):
    bus = await bus_as("gateway")
    subjects, seqs = await facts(bus, 2)
    org, job = subjects[0].split(".")[2:]
    publisher = Publisher(bus)

    class Busy(Lagging):
        async def request(self, subject: str, payload: bytes, **more: Any) -> Msg:
            reply = await super().request(subject, payload, **more)
            if subject.startswith(CREATE):
                seqs.append(await publisher.once(Heartbeat(state="started"), org=org, key=job, id=str(len(seqs))))
            return reply

    async with asyncio.timeout(20):
        found = await replay(replace(bus, nc=Busy(bus.nc, has=0, readings=0)), subjects)  # type: ignore[arg-type]
    assert [recorded.seq for recorded in found] in (seqs[:2], seqs[:3])


async def test_only_the_last_of_each_subject_whatever_is_written_in_between(bus_as):
    bus = await bus_as("gateway")
    subjects, seqs = await facts(bus, 2)
    org, job = subjects[0].split(".")[2:]
    publisher = Publisher(bus)

    class Overwriting(Lagging):
        """Says that a later message is the last, which is written only once the reading has begun."""

        asked = 0

        async def request(self, subject: str, payload: bytes, **more: Any) -> Msg:
            reply = await self._nc.request(subject, payload, **more)
            if subject.startswith(LAST):
                self.asked += 1
                if self.asked == 1:
                    return replace(reply, data=json.dumps({"message": {"seq": seqs[-1] + 1_000_000}}).encode())
                seqs.append(await publisher.once(Heartbeat(state="started"), org=org, key=job, id=f"new-{self.asked}"))
                return await self._nc.request(subject, payload, **more)
            return reply

    found = [m async for m in read_stream(Overwriting(bus.nc, has=0, readings=0), subjects, last_per_subject=True)]  # type: ignore[arg-type]
    assert len(found) == 2
    latest = await replay(replace(bus, nc=Overwriting(bus.nc, has=0, readings=0)), subjects, last_per_subject=True)  # type: ignore[arg-type]
    assert [fact.seq for fact in latest] == seqs[-1:]

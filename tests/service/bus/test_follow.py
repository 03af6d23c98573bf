"""A follower yields each event once, also of a connection that goes with what was on its way, and of a slow reader."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

from nats.aio.msg import Msg

from synth.bus.access.client import BusClient
from synth.bus.publish import Publisher
from synth.bus.replay import follow
from synth.events import Heartbeat
from synth.ids import new_job_id, new_org_id
from tests.service.bus.way import Way, connection_by


class Losing(Way):
    """lose: what the bus says next is lost, and with it the connection, once it names this."""

    lose = b""

    async def hears(self, data: bytes) -> bool:
        if not self.lose or self.lose not in data:
            return True
        self.lose = b""
        return False


async def test_what_went_with_a_connection_is_read_again_though_nothing_comes_after_it(settings_of, bus_as):
    publisher, org, job = Publisher(await bus_as("gateway")), new_org_id(), new_job_id()

    async def write(n: int) -> int:
        return await publisher.once(Heartbeat(state="started"), org=org, key=job, id=str(n))

    first = await write(0)
    subjects = [f"watch.heartbeat.{org}.{job}"]
    async with asyncio.timeout(30), connection_by(Losing, settings_of("gateway"), "gateway") as (way, bus):
        async with aclosing(follow(bus, subjects)) as events:
            assert (await anext(events)).seq == first
            way.lose = job.encode()
            lost = await write(1)
            assert (await anext(events)).seq == lost
        assert way.lose == b""


async def test_a_server_whose_answer_to_a_ping_stands_behind_many_messages_is_not_dead(nats_server):
    """It takes twenty times as long to read the messages as a server may take to answer."""
    reader, writer = BusClient("bus"), BusClient("bus")
    password = nats_server.users["bus"]
    options: dict[str, Any] = {"servers": nats_server.url, "user": "bus", "password": password}
    await reader.connect(**options | {"ping_interval": 0.05, "max_outstanding_pings": 2})
    await writer.connect(**options)
    read, every = 0, asyncio.Event()

    async def take(message: Msg) -> None:
        nonlocal read
        time.sleep(0.002)  # noqa: ASYNC251 - a loop that has much to do
        read += 1
        if read == 1500:
            every.set()

    await reader.subscribe("outside.much.>", cb=take)
    await reader.flush()
    for _ in range(1500):
        await writer.publish("outside.much.x", b"x" * 1000)
    await writer.flush()
    async with asyncio.timeout(30):
        await every.wait()
    assert reader.stats["reconnects"] == 0
    await reader.close()
    await writer.close()

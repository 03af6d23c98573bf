"""A follower yields each event once, also of a connection that goes with what was on its way, and of a slow reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from nats.aio.msg import Msg

from synth.bus.access.client import BusClient
from synth.bus.connection import Connection, connect
from synth.bus.publish import Publisher
from synth.bus.replay import follow
from synth.events import Heartbeat
from synth.ids import new_job_id, new_org_id


class Losing:
    """A way to the bus. lose: what the bus says next is lost, and with it the connection, once it names this."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.lose = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_bus, to_bus = await asyncio.open_connection(self._host, self._port)

        async def questions() -> None:
            while data := await reader.read(65536):
                to_bus.write(data)

        asking = asyncio.create_task(questions())
        while data := await from_bus.read(65536):
            if self.lose and self.lose in data:
                self.lose = b""
                break
            writer.write(data)
        asking.cancel()
        to_bus.close()
        writer.close()


@pytest.fixture
async def losing(settings_of, bus_admin) -> AsyncIterator[tuple[Losing, Connection]]:
    """A gateway's connection, and the way that it goes."""
    settings = settings_of("gateway")
    host, port = settings.nats_url.removeprefix("nats://").split(":")
    way = Losing(host, int(port))
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    bus = await connect(settings.model_copy(update={"nats_url": f"nats://127.0.0.1:{address[1]}"}), "gateway")
    yield way, bus
    await bus.close()
    server.close()


async def test_what_went_with_a_connection_is_read_again_though_nothing_comes_after_it(losing, bus_as):
    way, bus = losing
    publisher, org, job = Publisher(await bus_as("gateway")), new_org_id(), new_job_id()

    async def write(n: int) -> int:
        return await publisher.once(Heartbeat(state="started"), org=org, key=job, id=str(n))

    first = await write(0)
    async with asyncio.timeout(30), aclosing(follow(bus.nc, [f"watch.heartbeat.{org}.{job}"])) as events:
        assert (await anext(events)).seq == first
        way.lose = job.encode()
        lost = await write(1)
        assert (await anext(events)).seq == lost
    assert way.lose == b""


async def test_a_server_whose_answer_to_a_ping_stands_behind_many_messages_is_not_dead(nats_server):
    """It takes twenty times as long to read the messages as a server may take to answer."""
    reader, writer = BusClient(), BusClient()
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

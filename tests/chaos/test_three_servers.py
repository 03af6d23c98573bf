"""A bus of three servers loses its leader under load: what was acknowledged stays, once, and the writers go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import SecretStr

from synth.bus.connection import Connection, connect
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.bus.server.embedded import new_users
from synth.bus.server.provision import provision
from synth.bus.server.topology import EVENTS, topology
from synth.events import Heartbeat
from synth.ids import new_job_id, new_org_id
from synth.runtime.settings import ServiceSettings
from tests.soak.bus_servers import BusServer, BusServers
from tests.soak.tcp_proxy import Link

WRITERS = 8
HARM_S = 6.0

figures = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[BusServers, Callable[[str], Awaitable[Connection]]]]:
    """Three servers, provisioned, and connections to them."""
    users, opened = new_users(), list[Connection]()
    three = BusServers(tmp_path, users)

    async def dial(service: str) -> Connection:
        url = ",".join(server.config.url for server in three.servers)
        settings = ServiceSettings(nats_url=url, nats_user=service, nats_password=SecretStr(users[service]))
        opened.append(await connect(settings, service))
        return opened[-1]

    try:
        await three.start()
        await provision((await dial("bus")).js, topology(replicas=3))
        yield three, dial
    finally:
        for connection in opened:
            await connection.close()
        await three.stop()


class Writers:
    """Gateways that append facts one after the other, and note which were acknowledged, and when."""

    def __init__(self) -> None:
        self.org, self.job = new_org_id(), new_job_id()
        self.acknowledged: dict[str, int] = {}
        self.moments: list[float] = []

    async def write(self, bus: Connection, name: int, stop: asyncio.Event) -> None:
        publisher, n = Publisher(bus), 0
        while not stop.is_set():
            id = f"{name}-{n}"
            seq = await publisher.once(Heartbeat(state="started"), org=self.org, key=self.job, id=id)
            self.acknowledged[id] = seq
            self.moments.append(time.monotonic())
            n += 1

    def longest_stall_s(self) -> float:
        moments = sorted(self.moments)
        return max(after - before for before, after in pairwise(moments))


async def _kill(servers: BusServers, leader: BusServer) -> None:
    leader.kill()
    await asyncio.sleep(HARM_S)
    leader.start()


async def _freeze(servers: BusServers, leader: BusServer) -> None:
    leader.freeze(True)
    await asyncio.sleep(HARM_S)
    leader.freeze(False)


async def _partition(servers: BusServers, leader: BusServer) -> None:
    servers.partition(leader, Link.FROZEN)
    await asyncio.sleep(HARM_S)
    servers.partition(leader, Link.OPEN)


@pytest.mark.parametrize("harm", [_kill, _freeze, _partition], ids=["kill", "freeze", "partition"])
async def test_no_acknowledged_event_is_lost_or_doubled_when_the_leader_goes(
    servers: tuple[BusServers, Callable[[str], Awaitable[Connection]]],
    harm: Callable[[BusServers, BusServer], Awaitable[None]],
):
    three, dial = servers
    writers, stop = Writers(), asyncio.Event()
    connections = [await dial("gateway") for _ in range(WRITERS)]
    writing = [asyncio.create_task(writers.write(bus, n, stop)) for n, bus in enumerate(connections)]
    while len(writers.moments) < 20 * WRITERS:
        await asyncio.wait(writing, timeout=0.1)
    leader = await three.leader(EVENTS)
    await harm(three, leader)
    await leader.wait_healthy()
    before = len(writers.moments)
    while len(writers.moments) < before + 20 * WRITERS:
        await asyncio.wait(writing, timeout=0.1)
    stop.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*writing)
    # Through a server that has just come back, too, which may lag behind the leader.
    readers = [await dial("gateway") for _ in range(3)]
    facts = await replay(readers[0], [f"watch.heartbeat.{writers.org}.{writers.job}"])
    name = f"watch.heartbeat.{writers.org}.{writers.job}:"
    kept = {fact.id.removeprefix(name): fact.seq for fact in facts}
    assert {id: kept.get(id) for id in writers.acknowledged} == writers.acknowledged
    assert [id for id, n in Counter(fact.id for fact in facts).items() if n > 1] == []
    figures.info("%d events acknowledged, longest stall %.1f s", len(writers.acknowledged), writers.longest_stall_s())

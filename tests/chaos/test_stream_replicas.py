"""`synthd bus init` on three servers: what is there gets the replicas of the setting, and never fewer than it has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from synth.bus.connection import Connection, connect
from synth.bus.server.embedded import new_users
from synth.bus.server.provision import drift, provision
from synth.bus.server.topology import topology
from synth.runtime.settings import ServiceSettings
from tests.soak.bus_servers import BusServers

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.fixture
async def three_servers(tmp_path: Path) -> AsyncIterator[Connection]:
    """A bus of three servers, as its owner."""
    users = new_users()
    servers = BusServers(tmp_path, users)
    try:
        await servers.start()
        url = ",".join(server.config.url for server in servers.servers)
        settings = ServiceSettings(nats_url=url, nats_user="bus", nats_password=SecretStr(users["bus"]))
        bus = await connect(settings, "bus")
        yield bus
        await bus.close()
    finally:
        await servers.stop()


async def replicas_of(bus: Connection) -> set[int]:
    """Those of every stream and bucket."""
    names = [stream.name for stream in topology().streams] + [f"KV_{bucket}" for bucket in topology().buckets]
    return {(await bus.js.stream_info(name or "")).config.num_replicas or 1 for name in names}


async def test_replicas_are_added_to_what_is_there_and_never_taken_away(three_servers):
    await provision(three_servers.js, topology())
    assert await replicas_of(three_servers) == {1}
    wanted = topology(replicas=3)
    lacking = await drift(three_servers.js, wanted)
    assert len(lacking) == len(wanted.streams) + len(wanted.buckets)
    assert all("num_replicas is 1, should be 3" in line for line in lacking)
    await provision(three_servers.js, wanted)
    assert await replicas_of(three_servers) == {3}
    assert await drift(three_servers.js, wanted) == []
    await provision(three_servers.js, topology(replicas=1))
    assert await replicas_of(three_servers) == {3}
    assert await drift(three_servers.js, topology(replicas=1)) == []

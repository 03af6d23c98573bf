"""A gateway whose server of the bus lags behind the leader: its watchers get each event all the same."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from synth.bus.connection import Connection, connect
from synth.bus.publish import Publisher
from synth.bus.server.topology import EVENTS
from synth.events import Heartbeat
from synth.gateway.read_model.event_log import read_page
from synth.ids import new_job_id, new_org_id
from synth.runtime.settings import ServiceSettings
from tests.chaos.test_three_servers import servers
from tests.soak.bus_servers import BusServer, BusServers

__all__ = ["servers"]

EVENTS_READ = 300

figures = logging.getLogger(__name__)
pytestmark = pytest.mark.timeout(600)


async def dial(server: BusServer) -> Connection:
    """Connect to one server alone."""
    config = server.config
    password = SecretStr(config.users["gateway"])
    return await connect(ServiceSettings(nats_url=config.url, nats_user="gateway", nats_password=password), "gateway")


async def test_a_page_that_ends_at_the_present_has_every_acknowledged_event(
    servers: tuple[BusServers, Callable[[str], Awaitable[Connection]]], tmp_path: Path
):
    three, _ = servers
    leader = await three.leader(EVENTS)
    at_leader = await dial(leader)
    at_follower = await dial(next(server for server in three.servers if server is not leader))
    publisher, (org, job) = Publisher(at_leader), (new_org_id(), new_job_id())
    subject, late = f"*.*.{org}.{job}", 0
    for number in range(EVENTS_READ):
        seq = await publisher.once(Heartbeat(state="running"), org=org, key=job, id=str(number))
        page = await read_page(at_follower, subject, after=seq - 1, limit=100)
        late += not page.events
        page = await read_page(at_follower, subject, after=seq - 1, limit=100, whole=True)
        assert [event.seq for event in page.events] == [seq]
    figures.info("%d of %d pages of a follower lacked the event that its leader had acknowledged", late, EVENTS_READ)
    await at_leader.close()
    await at_follower.close()

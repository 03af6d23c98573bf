"""What a thief of a service's credential says on the bus hurts no gateway: it shows its jobs, and takes new ones."""

from __future__ import annotations

import random
from pathlib import Path

import httpx
import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from synth.bus.server.embedded import free_port
from synth.events.catalogue import SERVICES
from synth.keys import new_api_key
from tests.service.own_bus import provisioned
from tests.service.process import running
from tests.soak.hostile.bus_messages import bus_message

MESSAGES = 150


@pytest.fixture
async def thieves(own_bus):
    """A plain client of NATS for each service, with its credential. Nobody else is on this bus but a gateway."""
    await provisioned(own_bus)

    async def ignore(error: Exception) -> None:
        """What the server refuses it may refuse."""

    users = own_bus.config.users
    clients: dict[str, Client] = {
        service: await nats.connect(own_bus.config.url, user=service, password=users[service], error_cb=ignore)
        for service in SERVICES
    }
    yield clients
    for client in clients.values():
        await client.close()


async def test_a_gateway_lives_through_what_thieves_say(own_bus, thieves, tmp_path: Path):
    key, port, rng = new_api_key(), free_port(), random.Random(6)
    own = {"SYNTH_BOOTSTRAP_API_KEY": key, "SYNTH_READ_MODEL_PATH": str(tmp_path / "gateway.db")}
    headers = {"Authorization": f"Bearer {key}"}
    http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)
    with running("gateway", own_bus.settings("gateway"), tmp_path / "log", port=port, **own):
        async with http:
            org = (await http.get("/api/me")).json()["org"]
            ids = [(await http.post("/api/jobs", json={"config": "x"})).json()["id"]]
            said = 0
            for _ in range(MESSAGES):
                message = bus_message(rng, orgs=[org, "org_x"], keys=["job_x"])
                thief = thieves[message.thief]
                try:
                    await thief.publish(message.subject, message.body, headers=message.headers or None)
                    await thief.flush(20)
                except (NatsError, ValueError):
                    continue
                said += 1
            assert said > MESSAGES // 2
            # Behind all of it in the log, and answered when the read model has it.
            ids.append((await http.post("/api/jobs", json={"config": "x"})).json()["id"])
            assert set(ids) <= {job["id"] for job in (await http.get("/api/jobs")).json()["data"]}

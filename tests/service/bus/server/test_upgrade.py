"""A bus of a version without accounts, and with one bucket of secrets, goes on where it was."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError

from synth.bus.server.embedded import wait_healthy
from synth.bus.server.provision import provision
from synth.bus.server.topology import EVENTS, topology
from tests.service.bus.own_server import OwnServer
from tests.service.bus.server.plain_server import start_plain

_RECORDS = {
    "org.org_x": "api_keys",
    "api.org_x.hash": "api_keys",
    "owner.hash": "api_keys",
    "chat.digest.org_x": "api_keys",
    "environment.org_x.key_1": "environment_keys",
    "judge.org_x.openai": "judge_keys",
}


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnServer]:
    server = OwnServer.at(tmp_path)
    yield server
    await server.close()


async def test_log_queues_and_secrets_of_an_earlier_version_are_kept(own: OwnServer):
    own.process = start_plain(own, {"users": [{"user": "bus", "password": own.config.users["bus"]}]})
    wait_healthy(own.config)
    earlier = await nats.connect(own.config.url, user="bus", password=own.config.users["bus"])
    js = earlier.jetstream()
    await provision(js, topology())
    secrets = await js.create_key_value(bucket="secrets", history=1)
    for key in (*_RECORDS, "api.org_x.gone"):
        await secrets.put(key, json.dumps(key).encode())
    await secrets.put("owner.hash", b'"changed"')
    await secrets.delete("api.org_x.gone")
    for job in ("job_a", "job_b"):
        await js.publish(f"job.created.org_x.{job}", b"{}", stream=EVENTS)
    queue = await js.pull_subscribe_bind(durable="validator-job-created", stream=EVENTS)
    [first] = await queue.fetch(1, timeout=10)
    await first.ack_sync(timeout=10)
    # Of a move that was interrupted.
    await js.publish("$KV.judge_keys.judge.org_x.openai", json.dumps("judge.org_x.openai").encode())
    await earlier.close()
    # In good order: a server that is killed may deliver what it has just seen acknowledged once more.
    own.process.terminate()
    own.process.wait(20)

    own.start()
    bus = await own.provision(ack_wait=600)
    assert (await bus.js.stream_info(EVENTS)).state.last_seq == 2
    queue = await bus.js.pull_subscribe_bind(durable="validator-job-created", stream=EVENTS)
    [second] = await queue.fetch(2, timeout=10)
    assert second.subject == "job.created.org_x.job_b"
    for key, bucket in _RECORDS.items():
        entry = await (await bus.js.key_value(bucket)).get(key)
        assert json.loads(entry.value or b"") == ("changed" if key == "owner.hash" else key)
    assert (await bus.js.stream_info("KV_api_keys")).state.messages == 4
    with pytest.raises(NotFoundError):
        await bus.js.stream_info("KV_secrets")
    # A second time, nothing changes.
    await provision(bus.js, topology())
    assert (await bus.js.stream_info("KV_api_keys")).state.messages == 4

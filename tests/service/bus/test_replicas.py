"""Who serves what, as the inference processes announce it."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from synth.bus.kv.replicas import Announcement, Replica, ReplicaTable
from synth.bus.server.topology import REPLICAS


async def test_a_record_that_cannot_be_read_ends_nobody(bus_as):
    inference, gateway = await bus_as("inference"), await bus_as("gateway")
    good = Replica(id="good", boot="1", url="http://127.0.0.1:9", pool="default", models=["m-of-the-good"])
    for name, body in (
        ("deleted", b""),
        ("newer", b'{"id": 7}'),
        ("good", msgspec.json.encode(Announcement(replica=good, clock=0))),
    ):
        await inference.js.publish(f"$KV.{REPLICAS}.{name}", body)
    table = ReplicaTable(gateway)
    following = asyncio.create_task(table.follow())
    assert await table.wait_serving("m-of-the-good", timeout=10) == [good]
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("ahead", [90.0, -90.0])
async def test_the_clock_of_a_replica_is_known_however_wrong_it_is(bus_as, ahead: float):
    inference, rollouts = await bus_as("inference"), await bus_as("rollouts")
    wrong = Replica(id=f"wrong{ahead:.0f}", boot="1", url="http://127.0.0.1:9", pool="default", models=["m"])

    async def say(models: list[str], late_s: float = 0.0) -> None:
        said = msgspec.structs.replace(wrong, models=models)
        body = msgspec.json.encode(Announcement(replica=said, clock=time.time() + ahead - late_s))
        await inference.js.publish(f"$KV.{REPLICAS}.{wrong.id}", body)

    await say(["lain in the bucket"], late_s=8)
    table = ReplicaTable(rollouts)
    following = asyncio.create_task(table.follow())
    await table.wait_serving("lain in the bucket", timeout=10)
    assert table.clock_of(wrong) == pytest.approx(time.time(), abs=1)
    for model, late_s in (("prompt", 0.0), ("under way for long", 5.0)):
        await say([model], late_s)
        await table.wait_serving(model, timeout=10)
        assert table.clock_of(wrong) == pytest.approx(time.time() + ahead, abs=1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

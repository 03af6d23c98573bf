"""Who serves what, as the inference processes announce it."""

from __future__ import annotations

import asyncio

import msgspec

from synth.bus.kv.replicas import Replica, ReplicaTable
from synth.bus.server.topology import REPLICAS


async def test_a_record_that_cannot_be_read_ends_nobody(bus_as):
    inference, gateway = await bus_as("inference"), await bus_as("gateway")
    good = Replica(id="good", boot="1", url="http://127.0.0.1:9", pool="default", models=["m-of-the-good"])
    for name, body in (("deleted", b""), ("newer", b'{"id": 7}'), ("good", msgspec.json.encode(good))):
        await inference.js.publish(f"$KV.{REPLICAS}.{name}", body)
    table = ReplicaTable(gateway)
    following = asyncio.create_task(table.follow())
    assert await table.wait_serving("m-of-the-good", timeout=10) == [good]
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

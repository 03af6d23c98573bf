"""The lease of a question between two replicas of the judge."""

from __future__ import annotations

import asyncio

import pytest
from nats.js.errors import KeyNotFoundError

from synth.bus.server.topology import JUDGING
from synth.judge.leases import Leases


async def test_a_replica_that_was_silent_ends_no_lease_of_its_successor(bus_as):
    bus = await bus_as("judge")
    bucket = await bus.js.key_value(JUDGING)
    silent, successor = Leases(bus, every_s=1000), Leases(bus, every_s=0.05)
    async with asyncio.timeout(30):
        async with silent.hold("silent"):
            pass
        with pytest.raises(KeyNotFoundError):
            await bucket.get("work.silent")
        first = silent.hold("taken")
        await first.__aenter__()
        async with successor.hold("taken"):
            taken = (await bucket.get("work.taken")).value
            await first.__aexit__(None, None, None)
            assert (await bucket.get("work.taken")).value == taken

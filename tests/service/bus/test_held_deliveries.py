"""Events that wait in a process for their turn: what is delivered again meanwhile is no try, and no second event."""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg

from synth.bus.held_deliveries import HeldDeliveries
from synth.bus.server.topology import MAX_DELIVERIES
from synth.errors import Transient
from tests.service.bus.test_delivery import QUEUE, Handler, raising, settled, submit, validator


async def test_what_is_given_back_while_it_waits_is_not_counted_as_tried(own):
    """Services that restart one after another have its first failure come back, as if they had never had it."""
    await own.provision()
    await submit(own, "a")
    bus = await own.connect("validator")
    waiting = await bus.js.pull_subscribe_bind(consumer=QUEUE[1], stream=QUEUE[0])
    for _ in range(MAX_DELIVERIES + 1):
        [msg] = await waiting.fetch(1, timeout=5)
        await msg.nak()
    handler = Handler(raising(Transient("not yet", delay=0.05), until=2), enough=2)
    async with validator(own, handler):
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert handler.names == ["a", "a"]


async def test_an_event_that_is_delivered_again_while_it_waits_is_handled_once(own, monkeypatch):
    """As after an outage, for which the server has heard of no progress."""
    await own.provision()
    monkeypatch.setattr("synth.bus.held_deliveries.HEARTBEAT_S", 60.0)
    go_on, taken = asyncio.Event(), list[str]()
    take = HeldDeliveries.take

    def note(held: HeldDeliveries, msg: Msg) -> bool:
        taken.append(msg.subject)
        if min(taken.count(subject) for subject in taken) == 3:
            go_on.set()
        return take(held, msg)

    monkeypatch.setattr(HeldDeliveries, "take", note)

    async def wait() -> None:
        await go_on.wait()

    handler = Handler(lambda name, _: wait() if name == "first" else None, enough=2)
    async with validator(own, handler):
        await submit(own, "first", "second")
        await asyncio.wait_for(handler.enough.wait(), 20)
        await settled(own)
    assert handler.names == ["first", "second"]

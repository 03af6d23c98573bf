"""What an event's deliveries count for: waiting for nothing, a try that its process does not survive for one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter

from synth.bus.server.topology import MAX_DELIVERIES
from synth.errors import Transient
from tests.service.bus.own_server import OwnServer, next_dead_letter
from tests.service.bus.test_delivery import QUEUE, Handler, raising, settled, submit, validator


async def _deliver_untried(own: OwnServer, times: int, *, events: int) -> None:
    """Let the server deliver each of the events so often at least, to a process that tries none of it."""
    bus = await own.connect("validator")
    subscription = await bus.js.pull_subscribe_bind(durable=QUEUE[1], stream=QUEUE[0])
    delivered = Counter[int]()
    async with asyncio.timeout(60):
        # One fetch may come before the server has taken back what the one before it was given.
        while len(delivered) < events or min(delivered.values()) < times:
            for msg in await subscription.fetch(100, timeout=5):
                delivered[msg.metadata.sequence.stream] += 1
                await msg.nak()


async def test_an_event_that_only_waited_is_handled_however_often_it_was_delivered(own):
    await own.provision()
    await submit(own, "patient")
    await _deliver_untried(own, 5 * MAX_DELIVERIES, events=1)
    handler = Handler(raising(Transient("not yet", delay=0.01), until=2), enough=2)
    async with validator(own, handler):
        await asyncio.wait_for(handler.enough.wait(), 10)
        await settled(own)
    assert handler.names == ["patient"] * 2


#: A service whose handler of `job.created` dies of one event, and sees to the others.
_DIES = """
import asyncio, os, sys
from synth.bus.connection import connect
from synth.bus.delivery import make_broker, on_event, release_slot, serve_events
from synth.events import JobCreated
from synth.events.catalogue import Role
from synth.runtime.settings import ServiceSettings

async def handle(event, created):
    print(created.config_name, flush=True)
    if created.config_name == "waits":
        release_slot()
        while not os.path.exists(os.environ["GO_ON"]):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.05 if created.config_name == "poison" else 0.5)
    if created.config_name == "poison":
        os._exit(7)
    print("end of", created.config_name, flush=True)

async def main():
    settings = ServiceSettings(replica="validator-0")
    bus = await connect(settings, "validator")
    broker = make_broker(settings, "validator")
    on_event(broker, bus, Role.VALIDATOR, JobCreated, handle, concurrency=4)
    await serve_events(broker, bus, Role.VALIDATOR, asyncio.Event(), asyncio.Event())

asyncio.run(main())
"""


async def test_an_event_that_kills_its_process_is_a_dead_letter_and_buries_none_beside_it(own, tmp_path):
    bus = await own.provision()
    await submit(own, "beside 1", "waits", "poison", "beside 2")
    # All of them are suspected alike.
    await _deliver_untried(own, MAX_DELIVERIES, events=4)
    settings = own.settings("validator")
    environment = {
        **os.environ,
        "SYNTH_NATS_URL": settings.nats_url,
        "SYNTH_NATS_USER": "validator",
        "GO_ON": str(tmp_path / "go on"),
        "SYNTH_NATS_PASSWORD": own.config.users["validator"],
    }
    said: list[str] = []
    letter = asyncio.create_task(next_dead_letter(bus))
    async with asyncio.timeout(120):
        while not letter.done():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _DIES), env=environment, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            dying = asyncio.create_task(process.wait())
            await asyncio.wait({dying, letter}, return_when=asyncio.FIRST_COMPLETED)
            if not dying.done():
                (tmp_path / "go on").touch()
                await settled(own)
                process.terminate()
            await dying
            said += (await process.stdout.read()).decode().splitlines()
    assert said.count("poison") == MAX_DELIVERIES
    assert {"end of beside 1", "end of beside 2", "end of waits"} <= set(said)
    letters = await bus.js.stream_info("DEAD")
    assert letters.state.messages == 1
    assert f"{MAX_DELIVERIES} times in a row its process was lost" in letter.result().headers["Synth-Reason"]

"""Whoever has stolen one service's credential hears and ends nothing of another service, whatever its client does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from synth.bus.access.client import SERVICE_API
from synth.bus.publish import enqueue
from synth.bus.rpc import JUDGE, QUESTIONS, VALIDATE
from synth.bus.server.topology import EVENTS, WORK, roles_of, topology
from synth.events.catalogue import CATALOGUE, SERVICES, Reading
from synth.ids import new_job_id, new_org_id
from synth.work import TASKS, Task

_ENDINGS = (b"+ACK", b"-NAK", b"+TERM", b"+WPI", b"+NXT")


@dataclass
class Thief:
    """A plain client of NATS with one service's user and password, and what the server refused it."""

    nc: Client
    refused: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def is_refused(self) -> str:
        return (await asyncio.wait_for(self.refused.get(), 20)).lower()


@pytest.fixture
def thief_of(settings_of, nats_server):
    @asynccontextmanager
    async def steal(service: str, prefix: str = "_INBOX.thief") -> AsyncIterator[Thief]:
        refused: asyncio.Queue[str] = asyncio.Queue()

        async def on_error(error: Exception) -> None:
            refused.put_nowait(str(error))

        password = settings_of(service).nats_password.get_secret_value()
        nc = await nats.connect(
            nats_server.url, user=service, password=password, error_cb=on_error, inbox_prefix=prefix
        )
        try:
            yield Thief(nc, refused)
        finally:
            await nc.close()

    return steal


async def ask_when_heard(nc: Client, subject: str) -> Msg:
    """Ask as soon as somebody listens: nats-py's `flush` may overtake a subscription."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await nc.request(subject, b"{}", timeout=20)
            except NoRespondersError:
                continue


def queues_of(service: str) -> set[tuple[str, str]]:
    """The durables that a service takes from."""
    roles = roles_of(service)
    taken = [
        f"{reader.value}-{spec.type.replace('.', '-')}"
        for spec in CATALOGUE.values()
        for reader, reading in spec.reads.items()
        if reader in roles and reading is Reading.QUEUE
    ]
    events = {(EVENTS, queue) for queue in taken} | {(WORK, f"retry-{queue}") for queue in taken}
    return events | {(WORK, f"{kind}-default") for kind, (taker, _) in TASKS.items() if taker in roles}


@pytest.mark.parametrize("service", SERVICES)
async def test_it_listens_to_no_inbox_and_no_question_of_another(thief_of, bus_admin, service: str):
    others = [name for name in SERVICES if name != service]
    asked = [subject for subject, (_, answerer) in QUESTIONS.items() if answerer != service]
    wished = [">", "*", "_INBOX.>", "_INBOX.*", "_INBOX.*.>", f"_INBOX.{service}", "$JS.>", "$JS.ACK.>", "$JS.API.>"]
    wished += ["$KV.>", "$KV.api_keys.>", "job.>", "work.>", "dead.>", "ask.>", "$SYS.>"]
    wished += [f"_INBOX.{other}.>" for other in others] + asked
    async with thief_of(service) as thief:
        for subject in wished:
            await thief.nc.subscribe(subject)
            said = await thief.is_refused()
            assert "permissions violation for subscription" in said, subject
            assert f'"{subject.lower()}"' in said


@pytest.mark.parametrize("service", SERVICES)
async def test_it_ends_no_delivery_of_a_queue_of_another(thief_of, bus_admin, service: str):
    others = {(c.stream, c.name) for c in topology().consumers} - queues_of(service)
    assert others
    async with thief_of(service) as thief:
        for stream, queue in others:
            for verb in ("$JS.ACK", f"{SERVICE_API}.CONSUMER.MSG.NEXT", f"{SERVICE_API}.CONSUMER.INFO"):
                tail = ".1.1.1.1.0" if verb == "$JS.ACK" else ""
                await thief.nc.publish(f"{verb}.{stream}.{queue}{tail}", b"+ACK")
                assert "permissions violation for publish" in await thief.is_refused()


async def test_a_task_that_its_owner_holds_stays_its_own_whatever_the_others_say(thief_of, bus_as, bus_admin):
    owner = await bus_as("trainer")
    task = Task(kind="train", pool="default", org=new_org_id(), job_id=new_job_id())
    await enqueue(await bus_as("verifier"), task)
    subscription = await owner.js.pull_subscribe_bind(durable="train-default", stream=WORK)
    [held] = await subscription.fetch(1, timeout=20)
    while held.subject != task.subject:
        # Another test's.
        await held.nak(delay=60)
        [held] = await subscription.fetch(1, timeout=20)
    pending = (await bus_admin.js.consumer_info(WORK, "train-default")).num_ack_pending
    for service in SERVICES:
        if service == "trainer":
            continue
        async with thief_of(service) as thief:
            for ending in _ENDINGS:
                await thief.nc.publish(held.reply, ending)
                assert "permissions violation" in await thief.is_refused()
    assert (await bus_admin.js.consumer_info(WORK, "train-default")).num_ack_pending == pending
    await held.ack_sync(timeout=20)
    assert (await bus_admin.js.consumer_info(WORK, "train-default")).num_ack_pending == pending - 1


@pytest.mark.parametrize("service", SERVICES)
async def test_it_forges_no_answer(thief_of, bus_admin, service: str):
    """An answer to a read of the gateway's keys would make any key a good one."""
    async with thief_of(service) as thief:
        for other in SERVICES:
            await thief.nc.publish(f"_INBOX.{other}.0123456789abcdefghijkl.0123456789abcdefghijkl", b"{}")
            assert "permissions violation for publish" in await thief.is_refused()


async def test_an_answerer_answers_who_has_asked_it_once_and_there_alone(thief_of, bus_as, bus_admin):
    gateway = await bus_as("gateway")
    async with thief_of("judge") as thief:

        async def twice(msg) -> None:
            await thief.nc.publish(msg.reply, b"answer")
            await thief.nc.publish(msg.reply, b"again")
            await thief.nc.publish(msg.reply.rpartition(".")[0] + ".another", b"forged")

        await thief.nc.subscribe(JUDGE, queue="thief", cb=twice)
        assert (await ask_when_heard(gateway.nc, JUDGE)).data == b"answer"
        for _ in range(2):
            assert "permissions violation for publish" in await thief.is_refused()


async def test_it_hears_its_own_answers_below_its_own_inbox_alone(thief_of, bus_admin):
    async with thief_of("validator", "_INBOX.validator") as own:
        assert (await own.nc.jetstream(prefix=SERVICE_API).stream_info(EVENTS)).config.name == EVENTS
        assert own.refused.empty()
    async with thief_of("validator") as thief:
        with pytest.raises((NatsTimeout, TimeoutError)):
            await thief.nc.request(f"{SERVICE_API}.STREAM.INFO.{EVENTS}", b"", timeout=1)
        assert "permissions violation for subscription" in await thief.is_refused()
    assert QUESTIONS[VALIDATE][1] == "validator"

"""The topology is applied by one owner, twice is once, and a difference is found. Users may do what they do."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError
from pydantic import SecretStr

from synth.bus.access.client import SERVICE_API
from synth.bus.connection import connect, connect_options
from synth.bus.publish import enqueue
from synth.bus.server.embedded import new_users
from synth.bus.server.provision import drift, provision
from synth.bus.server.topology import API_KEYS, topology
from synth.errors import Permanent, UserError
from synth.events.catalogue import CATALOGUE, SERVICES, Role
from synth.runtime.settings import ServiceSettings
from synth.work import TASKS, Task
from tests.service.bus.own_server import OwnServer
from tests.soak.bus_servers import BusServers


async def state_of(js):
    streams = [await js.stream_info(s.name) for s in topology().streams]
    consumers = [await js.consumer_info(c.stream, c.name) for c in topology().consumers]
    return [(s.config, s.created, s.state.messages) for s in streams] + [(c.config, c.created) for c in consumers]


async def test_provisioning_twice_changes_nothing(own):
    bus = await own.connect("bus")
    await provision(bus.js, topology())
    before = await state_of(bus.js)
    await provision(bus.js, topology())
    assert await state_of(bus.js) == before
    assert await drift(bus.js, topology()) == []


async def test_an_empty_bus_lacks_everything(own):
    bus = await own.connect("bus")
    wanted = topology()
    missing = len(wanted.streams) + len(wanted.consumers) + len(wanted.buckets)
    assert len(await drift(bus.js, wanted)) == missing


async def test_drift_names_what_was_changed_and_provisioning_mends_it(own):
    bus = await own.connect("bus")
    await provision(bus.js, topology())
    events = topology().streams[0]
    events.max_msg_size = 4096
    await bus.js.update_stream(events)
    consumer = next(c for c in topology().consumers if c.name == "validator-job-created")
    consumer.config.ack_wait = 77
    await bus.js.add_consumer(consumer.stream, consumer.config)
    await bus.js.delete_consumer("WORK", "train-default")
    found = await drift(bus.js, topology())
    assert len(found) == 3
    assert "stream EVENTS: max_msg_size is 4096" in found[0]
    assert any("validator-job-created: ack_wait is 77" in line for line in found)
    assert any("WORK/train-default is missing" in line for line in found)
    await provision(bus.js, topology())
    assert await drift(bus.js, topology()) == []


async def test_no_message_replaces_the_others_of_a_bucket(own):
    bus = await own.connect("bus")
    await provision(bus.js, topology())
    stream = f"KV_{API_KEYS}"
    # As an earlier version made it.
    await bus.js.update_stream(replace((await bus.js.stream_info(stream)).config, allow_rollup_hdrs=True))
    await provision(bus.js, topology())
    gateway = await own.connect("gateway")
    for key in ("one", "two"):
        await gateway.js.publish(f"$KV.{API_KEYS}.{key}", b"{}")
    for scope in ("all", "sub"):
        with pytest.raises(APIError):
            await gateway.js.publish(f"$KV.{API_KEYS}.one", b"{}", headers={"Nats-Rollup": scope})
    assert (await bus.js.stream_info(stream)).state.messages == 2


async def test_one_server_cannot_hold_three_replicas_and_says_so(own):
    bus = await own.connect("bus")
    with pytest.raises(UserError, match=r"SYNTH_BUS_REPLICAS.*one nats-server.*3 replicas"):
        await provision(bus.js, topology(replicas=3))


async def test_two_servers_cannot_hold_three_replicas_and_say_so(tmp_path):
    cluster = BusServers(tmp_path, users := new_users(), count=2)
    try:
        await cluster.start()
        settings = ServiceSettings(
            nats_url=cluster.servers[0].config.url, nats_user="bus", nats_password=SecretStr(users["bus"])
        )
        bus = await connect(settings, "bus")
        try:
            for _ in range(2):
                with pytest.raises(UserError, match=r"SYNTH_BUS_REPLICAS.*too few nats-servers.*3 replicas"):
                    await provision(bus.js, topology(replicas=3), patience_s=0.5)
                # What is there already is refused its replicas in the same words.
                await provision(bus.js, topology())
        finally:
            await bus.close()
    finally:
        await cluster.stop()


async def test_a_server_that_comes_late_is_waited_for(tmp_path):
    cluster = BusServers(tmp_path, users := new_users())
    try:
        await cluster.start(late=1)
        settings = ServiceSettings(
            nats_url=cluster.servers[0].config.url, nats_user="bus", nats_password=SecretStr(users["bus"])
        )
        bus = await connect(settings, "bus")
        try:
            with pytest.raises(UserError, match=r"too few nats-servers.*3 replicas"):
                await provision(bus.js, topology(replicas=3), patience_s=0)
            cluster.servers[2].start()
            await provision(bus.js, topology(replicas=3), patience_s=120)
            assert await drift(bus.js, topology(replicas=3)) == []
        finally:
            await bus.close()
    finally:
        await cluster.stop()


async def test_a_slow_bus_is_provisioned_as_long_as_one_more_part_becomes_ready(own, monkeypatch):
    bus, refused = await own.connect("bus"), set[str]()
    add_consumer = bus.js.add_consumer

    async def slow(stream, config):
        if len(refused) < 3 and config.durable_name not in refused:
            refused.add(config.durable_name)
            raise NatsTimeout
        return await add_consumer(stream, config)

    monkeypatch.setattr(bus.js, "add_consumer", slow)
    # Each of the three refusals costs half a second.
    await provision(bus.js, topology(), patience_s=0.9)
    assert len(refused) == 3
    assert await drift(bus.js, topology()) == []


@pytest.mark.parametrize("service", SERVICES)
async def test_the_server_refuses_a_service_what_another_publishes(nats_server, settings_of, bus_admin, service):
    refused: list[str] = []
    news = asyncio.Event()

    async def on_error(error: Exception) -> None:
        refused.append(str(error))
        news.set()

    options = connect_options(settings_of(service), service) | {"error_cb": on_error}
    nc = await nats.connect(nats_server.url, **options)
    roles = {Role(service)} | ({Role.OWNER} if service in ("trainer", "rollouts") else set())
    others = [s.type for s in CATALOGUE.values() if s.by not in roles]
    foreign = [f"{other}.org_x.job_x" for other in others]
    foreign += [f"work.{kind}.default.org_x.job_x" for kind, (_, by) in TASKS.items() if not roles & set(by)]
    for subject in foreign:
        news.clear()
        await nc.publish(subject, b"{}")
        await asyncio.wait_for(news.wait(), 5)
    assert len(refused) == len(foreign)
    assert all("permissions violation" in text.lower() for text in refused)
    with pytest.raises(NatsTimeout):
        await nc.jetstream(prefix=SERVICE_API).publish(f"{others[0]}.org_x.job_x", b"{}", timeout=0.3)
    await nc.close()


@pytest.mark.parametrize(
    ("service", "subject"),
    [
        ("inference", "$KV.api_keys.api.forged"),
        ("gateway", "$KV.replicas.forged"),
        ("validator", "js.api.CONSUMER.DELETE.EVENTS.verifier-job-validated"),
        ("validator", "js.api.CONSUMER.DURABLE.CREATE.EVENTS.mine"),
        ("verifier", "js.api.CONSUMER.CREATE.EVENTS.validator-job-created"),
        ("verifier", "js.api.CONSUMER.CREATE.EVENTS.mine.job.created.>"),
        ("verifier", "js.api.CONSUMER.MSG.NEXT.EVENTS.validator-job-created"),
        ("trainer", "js.api.DIRECT.GET.KV_api_keys"),
        ("trainer", "js.api.STREAM.DELETE.DEAD"),
        ("files", "js.api.STREAM.PURGE.WORK"),
        ("files", "$JS.API.STREAM.INFO.EVENTS"),
    ],
)
async def test_the_server_refuses_a_service_what_only_others_need(
    settings_of, nats_server, bus_admin, service, subject
):
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(error: Exception) -> None:
        refused.put_nowait(str(error))

    options = connect_options(settings_of(service), service) | {"error_cb": on_error}
    nc = await nats.connect(nats_server.url, **options)
    await nc.publish(subject, b"{}")
    assert "permissions violation" in (await asyncio.wait_for(refused.get(), 5)).lower()
    await nc.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_no_service_changes_a_queue(own: OwnServer, service: str):
    """Whatever it asks for: the queue would go on without what no longer fits its filter."""
    bus = await own.provision()
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(error: Exception) -> None:
        refused.put_nowait(str(error))

    options = connect_options(own.settings(service), service) | {"error_cb": on_error}
    thief = await nats.connect(own.config.url, **options)
    queue = "validator-job-created"
    before = (await bus.js.consumer_info("EVENTS", queue)).config
    config = {"ack_policy": "explicit", "filter_subject": "job.created.nobody.>"}
    closed = [f"CREATE.EVENTS{end}" for end in ("", f".{queue}", f".{queue}.job.created.nobody.>", ".mine.job.>")]
    closed += [f"DURABLE.CREATE.EVENTS.{name}" for name in (queue, "mine")]
    for named, action in itertools.product(({"name": queue}, {"durable_name": queue}), ("create", "update", "")):
        body = json.dumps({"stream_name": "EVENTS", "action": action, "config": config | named}).encode()
        for subject in closed:
            await thief.publish(f"{SERVICE_API}.CONSUMER.{subject}", body)
            assert "permissions violation" in (await asyncio.wait_for(refused.get(), 5)).lower()
        # A name that it may use, of a consumer that is not called so.
        reply = json.loads((await thief.request(f"{SERVICE_API}.CONSUMER.CREATE.EVENTS.mine", body, timeout=5)).data)
        assert "error" in reply or reply["name"] == "mine"
    await thief.close()
    assert (await bus.js.consumer_info("EVENTS", queue)).config == before


async def test_only_its_queuers_may_queue_a_task(bus_as):
    task = Task(kind="train", pool="nobody", org="org_x", job_id="job_x")
    with pytest.raises(Permanent, match="queued by inference or verifier or gateway, not by rollouts"):
        await enqueue(await bus_as("rollouts"), task)

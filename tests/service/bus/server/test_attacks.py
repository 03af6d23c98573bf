"""A stolen credential of a service changes nothing that the service may not publish to, in every way there is."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import NotFoundError
from pydantic import SecretStr

from synth.bus.access.client import ADMIN_API, SERVICE_API
from synth.bus.connection import Connection, connect
from synth.bus.server.accounts import STREAMS_ACCOUNT, accounts, covers
from synth.bus.server.embedded import ServerConfig, new_users, wait_healthy
from synth.bus.server.permissions import may_publish, permissions_of
from synth.bus.server.provision import provision
from synth.bus.server.topology import DEFAULT_POOL, EVENTS, WORK, topology
from synth.events.catalogue import CATALOGUE, SERVICES
from synth.runtime.settings import ServiceSettings
from synth.work import TASKS
from tests.service.bus.own_server import OwnServer
from tests.service.bus.server.attacks import Attacker, foreign_targets, literal
from tests.service.bus.server.plain_server import start_plain
from tests.soak.bus_servers import BusServers

_STREAMS = [*(str(stream.name) for stream in topology().streams), *(f"KV_{bucket}" for bucket in topology().buckets)]


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnServer]:
    server = OwnServer.at(tmp_path)
    yield server
    await server.close()


async def fill(bus: Connection) -> list[Any]:
    """A message of each kind, and a delivery of each queue, which its owner holds."""
    for type_ in CATALOGUE:
        await bus.js.publish(f"{type_}.org_a.job_a", b"{}", stream=EVENTS)
    for consumer in topology().consumers:
        if consumer.stream == WORK:
            subject = literal(str(consumer.config.filter_subject))
            await bus.js.publish(subject, b"{}", stream=WORK)
    for bucket in topology().buckets:
        await (await bus.js.key_value(bucket)).put("x.y.z", b"record")
    for service in SERVICES:
        await bus.js.publish(f"dead.{service}.job.created.org_a.job_a", b"{}", stream="DEAD")
    held: list[Any] = []
    for consumer in topology().consumers:
        subscription = await bus.js.pull_subscribe_bind(durable=consumer.name, stream=consumer.stream)
        held += await subscription.fetch(1, timeout=10)
    return held


async def state_of(bus: Connection, service: str) -> dict[str, object]:
    """Everything on the bus that this service may not change, and that no clock changes."""
    own = may_publish(service, (DEFAULT_POOL,))
    state: dict[str, object] = {}
    for name in _STREAMS:
        try:
            info = await bus.js.stream_info(name, subjects_filter=">")
        except NotFoundError:
            state[name] = "deleted"
            continue
        subjects = info.state.subjects or {}
        state[name] = {s: n for s, n in subjects.items() if not any(covers(p, s) for p in own)}
        state[f"{name} as configured"] = info.config
        state[f"{name} records"] = [subjects.get(f"$KV.{name[3:]}.{key}") for key in ("x.y.z", "api.org_x.hash")]
    for consumer in topology().consumers:
        if not any(covers(pattern, f"$JS.ACK.{consumer.stream}.{consumer.name}.x") for pattern in own):
            try:
                info = await bus.js.consumer_info(consumer.stream, consumer.name)
            except NotFoundError:
                state[consumer.name] = "deleted"
                continue
            state[consumer.name] = (info.config, info.num_ack_pending, info.ack_floor, info.num_waiting)
    return state


async def attack(server: ServerConfig, service: str, api: str) -> Attacker:
    """Try everything with the credential of a service at one server."""

    async def ignore(error: Exception) -> None:
        """Refusals are counted by nobody: the state of the bus is compared."""

    nc = await nats.connect(
        server.url,
        user=service,
        password=server.users[service],
        inbox_prefix=f"_INBOX.{service}",
        error_cb=ignore,
    )
    attacker = Attacker(nc, service, api)
    for target in foreign_targets(service):
        await attacker.attack(target)
    for bucket in topology().buckets:
        await attacker.replace_bucket(bucket)
    await attacker.change_streams()
    await attacker.settle()
    await nc.close()
    return attacker


@pytest.mark.parametrize("service", SERVICES)
async def test_a_stolen_credential_changes_nothing_of_another_purpose(own: OwnServer, service: str):
    own.start()
    bus = await own.provision(ack_wait=600)
    await fill(bus)
    before = await state_of(bus, service)
    attacker = await attack(own.config, service, SERVICE_API)
    assert attacker.attempts > 1000
    assert await state_of(bus, service) == before


@pytest.mark.long
async def test_three_servers_refuse_what_one_refuses(tmp_path: Path):
    """Each service attacks at another server: the leader of the log, and those that follow it."""
    servers = BusServers(tmp_path, new_users())
    await servers.start()
    configs = [server.config for server in servers.servers]
    urls, password = ",".join(config.url for config in configs), SecretStr(configs[0].users["bus"])
    bus = await connect(ServiceSettings(nats_url=urls, nats_user="bus", nats_password=password), "bus")
    try:
        await provision(bus.js, topology(replicas=len(configs)))
        await fill(bus)
        for config, service in zip(itertools.cycle(configs), SERVICES, strict=False):
            before = await state_of(bus, service)
            attacker = await attack(config, service, SERVICE_API)
            assert attacker.attempts > 1000
            assert await state_of(bus, service) == before
    finally:
        await bus.close()
        await servers.stop()


async def test_without_accounts_the_same_attacks_forge_facts_tasks_and_keys(own: OwnServer):
    """The attacks work: with the same permissions in one account, one credential is the whole cluster's."""
    users = [{"user": "bus", "password": own.config.users["bus"]}]
    users += [
        {"user": name, "password": own.config.users[name], "permissions": permissions_of(name, (DEFAULT_POOL,))}
        for name in SERVICES
    ]
    own.process = start_plain(own, {"users": users})
    wait_healthy(own.config)
    bus = await own.provision(ack_wait=600)
    await fill(bus)
    before = await state_of(bus, "files")
    await attack(own.config, "files", ADMIN_API)
    after = await state_of(bus, "files")
    changed = {name for name in before if before[name] != after.get(name)}
    assert {EVENTS, WORK, "KV_api_keys", "KV_replicas", "train-default"} <= changed
    assert after[EVENTS] == "deleted"


def test_no_subject_is_imported_twice_by_a_service():
    """The server would publish a message once for each import that matches."""
    blocks: Any = accounts(dict.fromkeys(("bus", *SERVICES), "x"), ("default", "gpu"), "", nkeys={})["accounts"]
    for service in SERVICES:
        subjects = [each["service"]["subject"] for each in blocks[service]["imports"] if "service" in each]
        assert not [(a, b) for a in subjects for b in subjects if a != b and covers(a, b)]
        assert len(set(subjects)) == len(subjects)
        exported = {each.get("service"): each for each in blocks[STREAMS_ACCOUNT]["exports"]}
        for subject in subjects:
            assert subject.startswith("ask.") or service in exported[subject]["accounts"]


def test_only_queuers_may_queue_and_only_takers_may_acknowledge_a_task():
    for kind, (taker, queuers) in TASKS.items():
        for service in SERVICES:
            subjects = may_publish(service, (DEFAULT_POOL,))
            queues = any(covers(s, f"work.{kind}.default.org.job.0") for s in subjects)
            assert queues == any(role.value == service for role in queuers) or service in ("trainer", "rollouts")
            if taker.value == service:
                assert f"$JS.ACK.{WORK}.{kind}-default.>" in subjects


@pytest.mark.parametrize("service", SERVICES)
async def test_a_stolen_credential_reads_the_log_and_its_own_streams_alone(
    nats_server, settings_of, bus_admin, service
):
    answered: set[str] = set()

    async def take(msg: Any) -> None:
        answered.add(msg.subject.rsplit(".", 2)[1])

    async def ignore(error: Exception) -> None:
        """What is refused is not answered."""

    password = settings_of(service).nats_password.get_secret_value()
    nc = await nats.connect(
        nats_server.url, user=service, password=password, inbox_prefix=f"_INBOX.{service}", error_cb=ignore
    )
    await nc.subscribe(f"_INBOX.{service}.read.>", cb=take)
    for stream in _STREAMS:
        subject = ">" if not stream.startswith("KV_") else f"$KV.{stream[3:]}.>"
        config = {"name": "mine", "deliver_subject": f"_INBOX.{service}.read.{stream}.pushed", "ack_policy": "none"}
        for n, (request, body) in enumerate(
            (
                (f"DIRECT.GET.{stream}", {"last_by_subj": subject}),
                (f"DIRECT.GET.{stream}.x.y", {}),
                (f"STREAM.MSG.GET.{stream}", {"seq": 1}),
                (f"CONSUMER.CREATE.{stream}.mine", {"stream_name": stream, "config": config}),
                (f"CONSUMER.MSG.NEXT.{stream}.mine", {"batch": 1}),
                (f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": f"_INBOX.{service}.read.{stream}.saved"}),
            )
        ):
            for api in (SERVICE_API, ADMIN_API):
                reply = f"_INBOX.{service}.read.{stream}.{n}"
                await nc.publish(f"{api}.{request}", json.dumps(body).encode(), reply=reply)
    await Attacker(nc, service, SERVICE_API).settle()
    await nc.close()
    own = [s for s in _STREAMS if f"{ADMIN_API}.STREAM.MSG.GET.{s}" in may_publish(service, (DEFAULT_POOL,))]
    assert answered == {EVENTS, *own}

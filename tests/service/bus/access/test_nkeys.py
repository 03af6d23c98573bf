"""nkeys on a real nats-server: a user proves itself without a password, has its permissions, and changes its key."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from nats.errors import TimeoutError as NatsTimeout
from pydantic import SecretStr

from examples.subscriber import follow, tls_of
from synth.bus.access.nkeys import NkeyKind, UserKey, new_seed
from synth.bus.connection import connect
from synth.bus.server.deployed import ServerTls
from synth.bus.server.embedded import free_port
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.errors import UserError
from synth.events.catalogue import SERVICES
from synth.keys import new_api_key
from tests.service.bus.access.certificates import Authority
from tests.service.process import running


@dataclass(frozen=True)
class Keys:
    """A seed for each user."""

    seeds: dict[str, str]

    @classmethod
    def new(cls, *users: str) -> Keys:
        return cls({user: new_seed(NkeyKind.USER) for user in users})

    @property
    def public(self) -> dict[str, tuple[str, ...]]:
        return {user: (UserKey(seed).public,) for user, seed in self.seeds.items()}

    def of(self, user: str) -> SecretStr:
        return SecretStr(self.seeds[user])


async def test_a_user_with_an_nkey_has_that_user_s_permissions_and_its_password_opens_nothing(server):
    keys = Keys.new("gateway", "validator")
    server.configure(nkeys=keys.public)
    server.start()
    bus = await server.connect("bus")
    await provision(bus.js, topology())
    gateway = await server.connect("gateway", nats_seed=keys.of("gateway"))
    assert (await gateway.js.publish("job.created.org_x.job_x", b"{}", timeout=5)).stream == "EVENTS"
    with pytest.raises(NatsTimeout):
        await gateway.js.publish("job.started.org_x.job_x", b"{}", timeout=0.3)
    named = {connection["name"].split("/")[0]: connection["authorized_user"] for connection in server.connections()}
    assert named == {"bus": "bus", "gateway": keys.public["gateway"][0]}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.connect("gateway"), 2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.connect("gateway", nats_seed=Keys.new("gateway").of("gateway")), 2)


async def test_a_key_takes_another_s_place_while_both_are_known(server):
    old, new = Keys.new("gateway"), Keys.new("gateway")
    server.configure(nkeys=old.public)
    server.start()
    before = await server.connect("gateway", nats_seed=old.of("gateway"))
    # The server takes no change of its users at a reload where it asks the gateways for others' logins.
    server.stop()
    server.configure(nkeys={"gateway": (*old.public["gateway"], *new.public["gateway"])})
    server.start()
    after = await asyncio.wait_for(server.connect("gateway", nats_seed=new.of("gateway")), 20)
    await server.until(lambda: before.nc.is_connected)
    server.stop()
    server.configure(nkeys=new.public)
    server.start()
    await server.until(lambda: after.nc.is_connected)
    await asyncio.sleep(3)
    assert (before.nc.is_connected, after.nc.is_connected) == (False, True)


async def test_what_is_no_seed_is_named_before_anything_is_dialled(server):
    for seed in ("", " \n"):
        # Empty as Compose passes on what is not set: the password counts.
        settings = server.settings("bus").model_copy(update={"nats_seed": SecretStr(seed)})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connect(settings, "bus"), 0.3)
    account = new_seed(NkeyKind.ACCOUNT)
    for seed in ("SUNOSEED", account, UserKey(new_seed(NkeyKind.USER)).public):
        with pytest.raises(UserError, match=r"^SYNTH_NATS_SEED: .*begin with SU.*synthd bus nkey USER") as error:
            await asyncio.wait_for(server.connect("bus", nats_seed=SecretStr(seed)), 5)
        assert seed not in str(error.value)
    both = server.settings("bus").model_copy(update={"nats_seed": SecretStr(new_seed(NkeyKind.USER))})
    with pytest.raises(UserError, match="SYNTH_NATS_SEED: there is a seed of an nkey and a password"):
        await asyncio.wait_for(connect(both, "bus"), 5)


@dataclass(frozen=True)
class Cluster:
    """A gateway and a validator as processes, by nkeys and over mutual TLS; the key of the first organisation."""

    url: str
    key: str
    tls: ssl.SSLContext


@pytest.fixture
async def cluster(server, server_tls: ServerTls, authority: Authority, tmp_path) -> AsyncIterator[Cluster]:
    keys = Keys.new("bus", *SERVICES)
    own = authority.sign("client")
    server.configure(tls=ServerTls(server_tls.cert, server_tls.key, str(authority.cert)), nkeys=keys.public)
    server.start()
    files = {"nats_ca": authority.cert, "nats_cert": own.cert, "nats_key": own.key}
    bus = await server.connect("bus", nats_seed=keys.of("bus"), **files)
    await provision(bus.js, topology())
    port, key = free_port(), new_api_key()
    given = {f"SYNTH_{name.upper()}": str(path) for name, path in files.items()}
    gateway = given | {
        "SYNTH_NATS_ISSUER_SEED": server.issuer_seed,
        "SYNTH_READ_MODEL_PATH": str(tmp_path / "gateway.db"),
        "SYNTH_BOOTSTRAP_API_KEY": key,
    }
    context = tls_of(authority.cert, Path(own.cert), Path(own.key))
    by_key = {user: server.settings(user, nats_seed=keys.of(user)) for user in ("gateway", "validator")}
    with (
        running("validator", by_key["validator"], tmp_path / "v.log", port=0, **given),
        running("gateway", by_key["gateway"], tmp_path / "g.log", port=port, **gateway),
    ):
        yield Cluster(f"http://127.0.0.1:{port}", key, context)


async def test_a_subscriber_hears_over_tls_what_services_with_nkeys_say(cluster, server):
    owner = {"Authorization": f"Bearer {cluster.key}"}
    async with httpx.AsyncClient(base_url=cluster.url, headers=owner, timeout=30) as http:
        reply = await http.post("/api/keys", json={"bus": True})
        assert reply.status_code == 201, reply.text
        job = (await http.post("/api/jobs", json={"config": "no job file"})).json()["id"]
    heard: list[str] = []
    async with asyncio.timeout(30):
        async with aclosing(follow(server.url, cluster.url, reply.json()["key"], after=0, tls=cluster.tls)) as events:
            async for event in events:
                heard.append(event.subject)
                if event.subject.startswith("job.rejected"):
                    break
    # The first is the gateway's; the second comes by the validator's broker.
    assert [subject.split(".")[1] for subject in heard if subject.endswith(job)] == ["created", "rejected"]
    assert {connection["tls_version"] for connection in server.connections()} == {"1.3"}

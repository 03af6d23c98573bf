"""The secrets of the embedded cluster: what its processes are given, and what a backup of it saves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from synth.bus.connection import connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.provision import provision
from synth.bus.server.topology import DEFAULT_POOL, topology
from synth.console.errors import CliError
from synth.events.catalogue import SERVICES
from synth.local.cluster.backup import _bus_alone, back_up, restore
from synth.local.cluster.control import prepare_cluster
from synth.local.cluster.plan import choose_ports, make_plan
from synth.local.cluster.state import ClusterState, StateFile
from synth.local.devices.plan import DevicePlan
from synth.runtime.settings import ServiceSettings
from tests.keyrings import secrets_of

OLD, NEW = "the secret before", "the secret of today"


def state_of(data: Path) -> ClusterState:
    state = StateFile(data).read()
    assert state is not None
    return state


def test_each_process_is_given_the_secrets_of_the_state_and_none_of_the_users_environment(tmp_path, monkeypatch):
    for name in ("SYNTH_SECRETS", "SYNTH_CLUSTER_SECRET", "SYNTH_CLUSTER_SECRET_EARLIER"):
        monkeypatch.setenv(name, "of another cluster")
    state = ClusterState(cluster_secret=NEW, cluster_secret_earlier=[OLD])
    choose_ports(state, SERVICES, port=0)
    plan = make_plan(state, tmp_path, SERVICES)
    for spec in (*plan.services, plan.provision):
        assert "SYNTH_SECRETS" not in spec.env
        with monkeypatch.context() as process:
            process.delenv("SYNTH_SECRETS")
            for name, value in spec.env.items():
                process.setenv(name, value)
            assert ServiceSettings().secrets_of("gateway").text() == secrets_of("gateway", NEW, OLD).text()


async def test_a_restore_that_is_killed_leaves_a_cluster_that_starts_only_when_it_has_ended(tmp_path, monkeypatch):
    data, copied, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    state = ClusterState()
    StateFile(data).path.parent.mkdir()
    StateFile(data).write(state)
    with _bus_alone(state, data) as port:
        settings = ServiceSettings(
            nats_url=f"nats://127.0.0.1:{port}", nats_user="bus", nats_password=SecretStr(state.users["bus"])
        )
        bus = await connect(settings, "bus")
        await provision(bus.js, topology())
        await bus.close()
    await back_up(data, copied, report=print)

    async def killed(*args: Any, **options: Any) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr("synth.local.cluster.backup.load_cluster", killed)
        with pytest.raises(asyncio.CancelledError):
            await restore(new, copied, pools=(DEFAULT_POOL,), report=print)

    def start() -> None:
        plan = lambda: (DevicePlan(), "")  # noqa: E731
        prepare_cluster(StateFile(new), SERVICES, port=0, env_file=new / ".env", plan=plan)

    with pytest.raises(CliError, match=rf"a restore of {copied} was begun.*synthctl restore {copied}"):
        start()
    with pytest.raises(CliError, match="has not ended"):
        await back_up(new, tmp_path / "again", report=print)
    assert not (new / ".env").exists()
    await restore(new, copied, pools=(DEFAULT_POOL,), report=print)
    start()


async def test_a_restored_cluster_has_the_secrets_of_its_backup_also_the_earlier_ones(tmp_path):
    data, copied = tmp_path / "data", tmp_path / "backup"
    state = ClusterState(cluster_secret=NEW, cluster_secret_earlier=[OLD])
    StateFile(data).path.parent.mkdir()
    StateFile(data).write(state)
    (data / "blobs").mkdir()

    async def store(folder: Path, port: int, *secrets: str):
        settings = ServiceSettings(
            nats_url=f"nats://127.0.0.1:{port}",
            nats_user="bus",
            nats_password=SecretStr(state_of(folder).users["bus"]),
        )
        bus = await connect(settings, "bus")
        return bus, SecretStore(bus, secrets_of("gateway", *secrets))

    with _bus_alone(state, data) as port:
        bus, before = await store(data, port, OLD)
        await provision(bus.js, topology())
        await before.add_environment_key("org_1", "env_1", by="key_1")
        await bus.close()
    await back_up(data, copied, report=print)
    await restore(tmp_path / "new", copied, pools=(DEFAULT_POOL,), report=print)
    restored = state_of(tmp_path / "new")
    assert (restored.cluster_secret, restored.cluster_secret_earlier) == (NEW, [OLD])
    with _bus_alone(restored, tmp_path / "new") as port:
        bus, after = await store(tmp_path / "new", port, restored.cluster_secret, *restored.cluster_secret_earlier)
        assert [key.key for key in await after.environment_keys("org_1")] == ["env_1"]
        await bus.close()

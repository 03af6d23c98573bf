"""Backing up and restoring the embedded cluster: its bus (running, or started for it alone), its blobs, its secrets."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
from pydantic import SecretStr

from synth.backup.folder import BackupFolder, BackupManifest
from synth.backup.load import check_target, load_cluster
from synth.backup.save import save_cluster
from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.history.store_identity import open_store
from synth.bus.server.embedded import ServerConfig, free_port, start, wait_healthy
from synth.bus.server.topology import topology
from synth.console.errors import CliError
from synth.local.cluster.state import ClusterState, StateFile
from synth.local.processes.files import write_private
from synth.local.processes.running import is_alive
from synth.models.aliases import ALIASES_FILE
from synth.runtime.settings import ServiceSettings

_SECRETS = "cluster.json"
_START_S = 60.0
#: Bytes that nats-server reads of its store in a second, at least.
_READ_BYTES_S = 20 << 20
_STOP_S = 20.0

Report = Callable[[str], None]


class ClusterSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a restored cluster shares with the saved one, whose stored keys are sealed with them."""

    cluster_secret: str
    cluster_secret_earlier: list[str] = []
    api_key: str
    environment_key: str


async def back_up(data: Path, target: Path, *, report: Report) -> BackupManifest:
    """Back up the cluster of a data folder, also while it runs. Raises `CliError` if the folder has no cluster."""
    file = StateFile(data)
    state = file.read()
    if state is None:
        raise CliError("there is no cluster here", fix="name its data folder with --data", where=str(data))
    state.check_restored()
    folder = BackupFolder(target)
    folder.create()
    secrets = ClusterSecrets(**{name: getattr(state, name) for name in ClusterSecrets.__struct_fields__})
    write_private(target / _SECRETS, msgspec.json.encode(secrets))
    aliases = data / "models" / ALIASES_FILE
    if aliases.exists():
        shutil.copy(aliases, target / ALIASES_FILE)
    with ExitStack() as stack:
        if is_alive(state.supervisor_pid, state.supervisor_started):
            port = next(p.port for p in state.processes if p.name == "nats")
        else:
            stack.enter_context(file.locked())
            port = stack.enter_context(_bus_alone(state, data))
        async with connected_as_bus(state, port) as bus:
            store = await open_store(bus, f"file:{data / 'blobs'}")
            return await save_cluster(bus, store, folder, report=report)


async def restore(data: Path, source: Path, *, pools: tuple[str, ...], report: Report) -> BackupManifest:
    """Make the cluster of a data folder from a backup; it must be down, and empty. Raises `CliError`, `UserError`."""
    file, folder = StateFile(data), BackupFolder(source)
    try:
        secrets = msgspec.json.decode((source / _SECRETS).read_bytes(), type=ClusterSecrets)
    except FileNotFoundError as error:
        raise CliError(
            "there is no backup of an embedded cluster here",
            expected="a folder that `synthctl backup` wrote",
            fix="what `synthd bus backup` wrote is restored with `synthd bus restore`",
            where=str(source),
        ) from error
    except msgspec.DecodeError as error:
        raise folder.damaged(_SECRETS, str(error)) from error
    with file.locked():
        state = file.read() or ClusterState()
        with _bus_alone(state, data) as port:
            async with connected_as_bus(state, port) as bus:
                await check_target(bus, folder)
                for name in ClusterSecrets.__struct_fields__:
                    setattr(state, name, getattr(secrets, name))
                # Before the log is there: a restore that is killed leaves no log without its secrets and no
                # cluster that starts. Started, it would make a new organisation for the user's key.
                state.restoring = str(source.absolute())
                file.write(state)
                if (source / ALIASES_FILE).exists():
                    (data / "models").mkdir(parents=True, exist_ok=True)
                    shutil.copy(source / ALIASES_FILE, data / "models" / ALIASES_FILE)
                blobs = BlobStore.open(f"file:{data / 'blobs'}")
                manifest = await load_cluster(bus, blobs, folder, topology(pools=pools), report=report)
                state.restoring = ""
                file.write(state)
                return manifest


@contextmanager
def _bus_alone(state: ClusterState, data: Path) -> Iterator[int]:
    """Run the bus of a cluster that is down, without its services; yields its port."""
    home = data / "nats"
    home.mkdir(parents=True, exist_ok=True)
    config = ServerConfig(port=free_port(), http_port=free_port(), store=home / "store", users=state.users)
    process = start(config, home / "nats-alone.conf", home / "nats-alone.log")
    try:
        stored = sum(file.stat().st_size for file in config.store.rglob("*") if file.is_file())
        wait_healthy(config, timeout=_START_S + stored / _READ_BYTES_S)
        yield config.port
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def connected_as_bus(state: ClusterState, port: int) -> AsyncIterator[Connection]:
    """Connect to the bus of a cluster as the user that may do everything. port: of nats-server."""
    settings = ServiceSettings(
        nats_url=f"nats://127.0.0.1:{port}",
        nats_user="bus",
        nats_password=SecretStr(state.users["bus"]),
        # The user's environment may set these for another bus.
        nats_seed=None,
        nats_ca=None,
        nats_cert=None,
        nats_key=None,
    )
    bus = await connect(settings, "bus")
    try:
        yield bus
    finally:
        await bus.close()

"""The processes of the embedded cluster, each with its command, its port and its settings."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from synth.bus.server.account_key import AccountKey
from synth.bus.server.embedded import ServerConfig, binary, free_port
from synth.bus.server.topology import DEFAULT_POOL, read_pools
from synth.console.errors import CliError
from synth.events.catalogue import SERVICES
from synth.local.cluster.gpu_report import turn_file
from synth.local.cluster.state import ClusterState, ProcessState
from synth.runtime.environment.child_environment import child_environment

HOST = "127.0.0.1"
DEFAULT_PORT = 8000
GRACE_S = 8.0
_PLANNED = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SYNTH_DEVICE", "SYNTH_ENGINE"})
# The services need no setting of the client. The cluster's secret comes from its state file.
_NOT_PASSED_ON = frozenset(
    {"SYNTH_API_KEY", "ENVIRONMENT_API_KEY", "BACKEND_BASE_URL", "TASK_APP_URL", "SYNTH_SECRETS"}
)
# Settings of another bus of the user's. The cluster's own bus uses plain text on loopback, and passwords.
_OF_ANOTHER_BUS = frozenset({"SYNTH_NATS_SEED", "SYNTH_NATS_CA", "SYNTH_NATS_CERT", "SYNTH_NATS_KEY"})


@dataclass(frozen=True)
class ProcessSpec:
    """One process of the cluster. health_url: the URL that answers 200 when it is well.

    synthd: the arguments of `synthd`, if the process may be a fork of one that runs this Python; otherwise ().
    """

    name: str
    synthd: tuple[str, ...]
    command: list[str]
    env: dict[str, str]
    port: int
    health_url: str
    log: Path


@dataclass(frozen=True)
class ClusterPlan:
    """The processes of a cluster in the order of their start: the bus, what provisions it, the services.

    data: the cluster's folder. blobs: that of its blob store. parents_env: the environment of the processes whose forks
    the services are.
    """

    data: Path
    blobs: Path
    parents_env: dict[str, str]
    nats: ProcessSpec
    nats_config: Path
    nats_text: str
    provision: ProcessSpec
    services: list[ProcessSpec]

    @property
    def specs(self) -> list[ProcessSpec]:
        return [self.nats, *self.services]


def gateway_port(state: ClusterState | None) -> int:
    """Return the port that the gateway had when the cluster ran last; the default one before its first start."""
    processes = state.processes if state else []
    return next((p.port for p in processes if p.name == "gateway"), DEFAULT_PORT)


def choose_ports(state: ClusterState, services: tuple[str, ...], *, port: int) -> None:
    """Give each process a port: its earlier one if it is free. Raises `CliError` when `port` is taken."""
    if not is_free(port):
        raise CliError(
            f"port {port} is in use by another program",
            expected="a free port for the gateway",
            fix=f"choose another one: synthctl up --port {port + 1}",
            where=f"{HOST}:{port}",
        )
    before = {p.name: p.port for p in state.processes}
    taken = {port}

    def pick(old: int) -> int:
        while not old or old in taken or not is_free(old):
            old = free_port()
        taken.add(old)
        return old

    state.nats_http_port = pick(state.nats_http_port)
    names = ("nats", *(name for name, _ in state.devices.processes(services)))
    state.processes = [
        ProcessState(name=name, port=port if name == "gateway" else pick(before.get(name, 0))) for name in names
    ]
    state.url = f"http://{HOST}:{port}"


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket() as s:
        # Servers set this too, so that lingering connections of an earlier start do not block the port.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError:
            return False
    return True


def make_plan(
    state: ClusterState,
    data: Path,
    services: tuple[str, ...] = SERVICES,
    *,
    environment: Mapping[str, str] = os.environ,
) -> ClusterPlan:
    """Plan every process of the cluster from its state. data: an absolute path. environment: of the supervisor."""
    ports = {p.name: p.port for p in state.processes}
    server = ServerConfig(
        port=ports["nats"],
        http_port=state.nats_http_port,
        store=data / "nats" / "store",
        users=state.users,
        pools=read_pools(environment.get("SYNTH_POOLS") or DEFAULT_POOL),
        issuer=AccountKey(state.issuer_seed).public,
    )
    config, logs = data / "nats" / "nats.conf", data / "logs"
    nats = ProcessSpec(
        name="nats",
        synthd=(),
        command=[str(binary()), "-c", str(config)],
        env=dict(environment),
        port=server.port,
        health_url=f"http://{HOST}:{server.http_port}/healthz",
        log=logs / "nats.log",
    )

    def spec(name: str, service: str, *arguments: str, port: int) -> ProcessSpec:
        own = state.inference_python if service == "inference" else ""
        return ProcessSpec(
            name=name,
            synthd=() if own else arguments,
            command=[own or sys.executable, "-m", "synth.synthd", *arguments],
            env=_environment(name, service, port, state, data, server.url, environment),
            port=port,
            health_url=f"http://{HOST}:{port}/healthz",
            log=logs / f"{name}.log",
        )

    return ClusterPlan(
        data=data,
        blobs=data / "blobs",
        parents_env=_parents_environment(environment),
        nats=nats,
        nats_config=config,
        nats_text=server.text(),
        provision=spec("bus", "bus", "bus", "init", port=0),
        services=[
            spec(name, service, service, port=ports[name]) for name, service in state.devices.processes(services)
        ],
    )


def outbound(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings that allow the services to call task apps, judges and images beside public addresses.

    Addresses on loopback are allowed unless the user's environment forbids them.
    """
    allowed = {"SYNTH_ALLOW_LOOPBACK": environment.get("SYNTH_ALLOW_LOOPBACK") or "1"}
    for name in ("SYNTH_ALLOWED_CIDRS", "SYNTH_OUTBOUND_PROXY"):
        if value := environment.get(name):
            allowed[name] = value
    return allowed


def _computing_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment, with defaults for what libraries compute with."""
    env = {key: value for key, value in environment.items() if key not in _NOT_PASSED_ON | _OF_ANOTHER_BUS}
    # Every service computes on one thread: there are more processes than cores.
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    return env | {"PYTHONUNBUFFERED": "1"}


def _parents_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the parents that fork the services. A fork gets its settings with the request."""
    env = child_environment(_computing_environment(environment))
    # To ask CUDA itself how many devices there are would initialise it, and no fork could use it.
    return env | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def _environment(
    name: str,
    service: str,
    port: int,
    state: ClusterState,
    data: Path,
    nats_url: str,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of one process: SYNTH_… of the user's environment, except where the plan must set them."""
    env = _computing_environment(environment)
    env.setdefault("SYNTH_GRACE_S", str(GRACE_S))
    env |= {
        "SYNTH_NATS_URL": nats_url,
        "SYNTH_NATS_USER": service,
        "SYNTH_NATS_PASSWORD": state.users[service],
        "SYNTH_BLOB_URL": f"file:{data / 'blobs'}",
        "SYNTH_CLUSTER_SECRET": state.cluster_secret,
        "SYNTH_CLUSTER_SECRET_EARLIER": ",".join(state.cluster_secret_earlier),
        "SYNTH_HOST": HOST,
        "SYNTH_PORT": str(port),
        "SYNTH_WORK_DIR": str(data / "work" / name),
        "SYNTH_MODELS_DIR": str(data / "models"),
        "SYNTH_REPLICA": f"{name}-0" if name == service else name,
        **outbound(environment),
    }
    if name == "validator" and "SYNTH_RANKS" in env:
        env.setdefault("SYNTH_TRAINER_RANKS", env["SYNTH_RANKS"])
    for key, value in state.devices.environment(name).items():
        # The plan already follows the user's settings of devices; the user's other settings override it.
        env[key] = value if key in _PLANNED else env.get(key, value)
    if state.devices.shared and service in ("inference", "trainer"):
        env["SYNTH_TURN_FILE"] = str(turn_file(data))
    if name == "gateway":
        env |= {
            "SYNTH_NATS_ISSUER_SEED": state.issuer_seed,
            "SYNTH_READ_MODEL_PATH": str(data / "gateway.db"),
            "SYNTH_BOOTSTRAP_API_KEY": state.api_key,
            "SYNTH_BOOTSTRAP_ENVIRONMENT_KEY": state.environment_key,
            # Task apps of this machine, on any port.
            "SYNTH_BOOTSTRAP_ENVIRONMENT_ORIGINS": "http://127.0.0.1,http://localhost",
        }
    return env

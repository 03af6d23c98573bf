"""The state of the embedded cluster, in `<data>/cluster.json`: ports, processes, passwords.

Passwords and the cluster's secret outlive a cluster's processes, since stored values were sealed with them. A process
is identified by its pid and its start time, so that a reused pid is never taken for ours.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from synth.bus.server.account_key import AccountKey
from synth.bus.server.embedded import new_users
from synth.console.errors import CliError
from synth.keys import new_api_key
from synth.local.devices.plan import DevicePlan
from synth.local.processes.files import locked, read_state, write_state
from synth.local.processes.running import end_groups, is_alive
from synth.runtime.environment.env_file import new_environment_key


class ProcessState(msgspec.Struct, kw_only=True):
    """One supervised process. pid None: not running. started: unix seconds, of the process itself.

    restarts: since the cluster came up. failing: it has not become healthy in its last five starts.
    """

    name: str
    port: int
    pid: int | None = None
    started: float | None = None
    restarts: int = 0
    failing: bool = False


class ClusterState(msgspec.Struct, kw_only=True):
    """The state of the cluster for a later command or supervisor.

    cluster_secret_earlier: the cluster's secrets from before a rotation. devices: what each process computes on.
    inference_python: what runs the inference service; "" is the Python of all others. restoring: the backup that is put
    here, until all of it is; "" at other times.
    """

    url: str = ""
    supervisor_pid: int | None = None
    supervisor_started: float | None = None
    nats_http_port: int = 0
    users: dict[str, str] = msgspec.field(default_factory=new_users)
    cluster_secret: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    cluster_secret_earlier: list[str] = []
    issuer_seed: str = msgspec.field(default_factory=AccountKey.new_seed)
    api_key: str = msgspec.field(default_factory=new_api_key)
    environment_key: str = msgspec.field(default_factory=new_environment_key)
    devices: DevicePlan = DevicePlan()
    inference_python: str = ""
    processes: list[ProcessState] = []
    restoring: str = ""

    def check_restored(self) -> None:
        """Raise `CliError` if a restore was begun here and has not ended."""
        if self.restoring:
            raise CliError(
                f"a restore of {self.restoring} was begun here and has not ended",
                expected="a cluster with all of its data",
                fix=f"end it: synthctl restore {self.restoring}",
            )

    def __post_init__(self) -> None:
        # The file may be of a version that had fewer services.
        self.users = new_users() | self.users


class StateFile:
    """The file, replaced whole at every change, readable by its owner only."""

    def __init__(self, data: Path) -> None:
        self.path = data / "cluster.json"
        self._lock_path = data / "cluster.lock"

    def read(self) -> ClusterState | None:
        """Return the state; None when there never was a cluster here. Raises `CliError` for a damaged file."""
        fix = "restore it: without its secrets, stored keys cannot be read; or move the whole data folder away"
        return read_state(self.path, ClusterState, what="cluster", fix=fix)

    def write(self, state: ClusterState) -> None:
        """Replace the file; a reader sees the old one or the new one."""
        write_state(self.path, state)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock for starting and stopping processes here. Raises `CliError` naming the cluster that runs."""
        return locked(self._lock_path, self._running)

    def _running(self) -> CliError:
        state = self.read()
        pid = state.supervisor_pid if state else None
        url = f" at {state.url}" if state and state.url else ""
        return CliError(
            f"a cluster is already running here{url} (supervisor pid {pid})",
            fix="use it, or end it with: synthctl down",
            where=str(self.path.parent),
        )


def end_leftovers(state: ClusterState, *, grace: float = 10.0) -> list[str]:
    """End the processes that a dead supervisor left behind, the bus last. Returns their names."""
    left = [p for p in state.processes if is_alive(p.pid, p.started)]
    for last in (False, True):
        end_groups([(p.pid, p.started) for p in left if (p.name == "nats") is last], grace=grace)
    return [p.name for p in sorted(left, key=lambda p: p.name == "nats")]

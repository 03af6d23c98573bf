"""The files of a deployed task app, in `<data>/deployments/<id>/`: its state, its order, its log.

Each change replaces the whole state. An order is the requested deployment. It holds the environment of the command
that gave it, with its keys, so only the owner can read its file, and the supervisor deletes it after reading.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from synth.console.errors import CliError, NotFound
from synth.local.processes.files import locked, read_state, write_private, write_state
from synth.local.processes.running import is_alive

Health = Literal["starting", "healthy", "unhealthy", "restarting", "failed", "stopped", "orphaned", "deployed"]


class DeployOrder(msgspec.Struct, kw_only=True, frozen=True):
    """A requested deployment. id: of the order itself. app: a file or module, with `:name`. port: 0 takes a free one.

    max_restarts: crashes in a row after which the app is given up; a process that stayed healthy for a while resets the
    count. start_s: seconds that a start may take.
    """

    id: str
    app: str
    folder: str
    host: str
    port: int
    max_restarts: int
    start_s: float
    env: dict[str, str]


class AtModal(msgspec.Struct, kw_only=True, frozen=True):
    """An app of Modal's: its name, its id, and the environment of the workspace, "" for the workspace's default."""

    name: str
    id: str
    environment: str


class DeploymentState(msgspec.Struct, kw_only=True):
    """One deployment. problem: why it is not well. order: the last one that was answered. refused: why that order was
    not followed; "" if it was. restarts: since this order was followed. started, supervisor_started: unix seconds.

    modal: its app at Modal; None for a process of this machine. The health of an app at Modal is "deployed": Modal
    starts a container when the app is called, and nothing checks it before.
    """

    id: str
    modal: AtModal | None = None
    app: str = ""
    folder: str = ""
    host: str = ""
    port: int = 0
    url: str = ""
    health: Health = "starting"
    problem: str = ""
    restarts: int = 0
    pid: int | None = None
    started: float | None = None
    supervisor_pid: int | None = None
    supervisor_started: float | None = None
    order: str = ""
    refused: str = ""

    @property
    def supervised(self) -> bool:
        """Whether somebody keeps it running."""
        return is_alive(self.supervisor_pid, self.supervisor_started)

    @property
    def running(self) -> bool:
        """Whether the app's own process runs."""
        return is_alive(self.pid, self.started)

    def seen(self) -> Health:
        """Return the health, corrected if the supervisor was killed: its last report may be out of date."""
        if self.modal is not None or self.supervised or self.health in ("failed", "stopped"):
            return self.health
        return "orphaned" if self.running else "failed"


class Deployment:
    """The files of one deployment."""

    def __init__(self, data: Path, id: str) -> None:
        self.id = id
        self.folder = data / "deployments" / quote(id, safe="")
        self.log = self.folder / "app.log"
        self._state = self.folder / "state.json"
        self._order = self.folder / "order.json"

    def read(self) -> DeploymentState | None:
        """Read the state; None if there is none. Raises `CliError` for a damaged file."""
        fix = "end what runs there by its pid, and remove the folder"
        return read_state(self._state, DeploymentState, what="deployment", fix=fix)

    def write(self, state: DeploymentState) -> None:
        """Replace the state; a reader sees the old one or the new one."""
        write_state(self._state, state)

    def give(self, order: DeployOrder) -> None:
        """Leave an order for the supervisor."""
        write_private(self._order, msgspec.json.encode(order))

    def take(self) -> DeployOrder | None:
        """Read the waiting order and delete its file; None if there is none."""
        try:
            order = msgspec.json.decode(self._order.read_bytes(), type=DeployOrder)
        except FileNotFoundError:
            return None
        self._order.unlink()
        return order

    def withdraw(self) -> None:
        """Take back an order that nobody took."""
        self._order.unlink(missing_ok=True)

    def locked(
        self, name: str = "command", *, busy: str = "another command changes this deployment"
    ) -> AbstractContextManager[None]:
        """Hold a lock of the deployment. Raises `CliError` if another process holds it."""
        fix = "try again when it has ended"
        return locked(self.folder / f"{name}.lock", lambda: CliError(busy, fix=fix, where=self.id))


def find_deployments(data: Path) -> list[tuple[Deployment, DeploymentState]]:
    """Return every deployment of a data folder, by id."""
    deployments: list[tuple[Deployment, DeploymentState]] = []
    for file in (data / "deployments").glob("*/state.json"):
        files = Deployment(data, unquote(file.parent.name))
        state = files.read()
        if state is not None:
            deployments.append((files, state))
    return sorted(deployments, key=lambda one: one[0].id)


def find_deployment(data: Path, id: str) -> tuple[Deployment, DeploymentState]:
    """Return the deployment of an app. Raises `NotFound`."""
    state = Deployment(data, id).read()
    if state is None:
        ids = ", ".join(one.id for one, _ in find_deployments(data))
        raise NotFound(f"no task app {id!r} is deployed here", expected=ids, fix="see: synthctl deploy ls")
    return Deployment(data, id), state

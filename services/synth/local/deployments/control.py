"""Deploying a task app to a process that stays, and ending it, from a command that does not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from synth.console.errors import CliError
from synth.local.deployments.state import Deployment, DeploymentState, DeployOrder
from synth.local.processes.files import failure, start_detached
from synth.local.processes.running import end_groups, end_leader
from synth.taskapp.server import GRACE_S

_LOOK_S = 0.05
#: Seconds beside the start itself, in which the supervisor ends the replaced process.
_MARGIN_S = GRACE_S + 10.0
_STOP_S = GRACE_S + 20.0


def deploy(
    files: Deployment,
    app: str,
    *,
    host: str,
    port: int | None,
    max_restarts: int,
    start_s: float,
    show: Callable[[str], None],
) -> DeploymentState:
    """Serve the app from now on, in place of an earlier deployment of it, with this process's environment.

    app: as `locate` returns it. port: None for its earlier port, a free one the first time.
    Raises `CliError` if the app does not become healthy; an earlier deployment then still runs.
    """
    with files.locked():
        before = files.read()
        if before is not None and before.modal is not None:
            if before.health != "stopped":
                what = f"{files.id} is deployed to Modal, at {before.url}"
                raise CliError(what, fix=f"synthctl deploy stop {files.id}", where=str(files.folder))
            before = None
            files.write(DeploymentState(id=files.id))
        if before is not None and not before.supervised and before.running:
            show("ending the processes of a killed supervisor")
            _end_orphan(before)
        order = DeployOrder(
            id=uuid.uuid4().hex,
            app=app,
            folder=str(Path.cwd()),
            host=host,
            port=port if port is not None else before.port if before else 0,
            max_restarts=max_restarts,
            start_s=start_s,
            env=dict(os.environ),
        )
        files.give(order)
        try:
            if before is not None and before.supervised:
                assert before.supervisor_pid is not None
                process = None
                os.kill(before.supervisor_pid, signal.SIGHUP)
            else:
                data = str(files.folder.parent.parent)
                process = start_detached("synth.local.deployments.supervisor", data, files.id, log=files.log)
            show(f"waiting for {files.id} to be healthy")
            return _outcome(files, order, process)
        finally:
            files.withdraw()


def stop(files: Deployment, state: DeploymentState) -> bool:
    """End a deployment; return whether it ran."""
    with files.locked():
        if end_leader(state.supervisor_pid, state.supervisor_started, grace=_STOP_S):
            _end_orphan(files.read() or state)
            return True
        left = state.running
        _end_orphan(state)
        state.health, state.problem = "stopped", ""
        state.pid = state.started = state.supervisor_pid = state.supervisor_started = None
        files.write(state)
        return left


def _outcome(files: Deployment, order: DeployOrder, process: subprocess.Popen[bytes] | None) -> DeploymentState:
    deadline = time.monotonic() + order.start_s + _MARGIN_S
    while True:
        state = files.read()
        ended = process.poll() is not None if process else not (state and state.supervised)
        if state is not None and state.order == order.id:
            if state.refused:
                still = f"; the one before still runs at {state.url}" if state.running else ""
                raise failure(f"{files.id} was not deployed: {state.refused}{still}", files.log)
            if state.health != "starting":
                return state
        if ended:
            raise failure(f"{files.id} was not deployed: its supervisor ended", files.log)
        if time.monotonic() > deadline:
            raise failure(f"{files.id} was not deployed: its supervisor does not answer", files.log)
        time.sleep(_LOOK_S)


def _end_orphan(state: DeploymentState) -> None:
    end_groups([(state.pid, state.started)], grace=GRACE_S + 4.0)

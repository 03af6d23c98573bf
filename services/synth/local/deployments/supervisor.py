"""Keeps one task app running: `python -m synth.local.deployments.supervisor DATA ID`.

It holds the app's socket, so that the port stays and calls wait while a process is replaced or restarted. SIGHUP has it
follow the order that was left: the new process takes over when it is healthy, and only then the old one ends; an order
that does not come up changes nothing. SIGTERM ends it all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from synth.console.errors import CliError
from synth.errors import UserError
from synth.local.deployments.state import Deployment, DeploymentState, DeployOrder
from synth.local.processes import files as process_files
from synth.local.processes.http import open_local_http
from synth.local.processes.running import start_of
from synth.local.processes.supervisor import SupervisedProcess, first_of
from synth.taskapp.server import GRACE_S, listen, url_of

_CLOSED_LOOK_S = 0.1
#: An app may have keys of its own, which are not known here: refusing ours, it is there.
_ALIVE = (200, 400, 401, 403)


class Worker:
    """The process that follows an order. changed: called with the worker after each change of its health.

    It answers at the app's socket, and at one of its own, where only the supervisor calls it.
    """

    def __init__(self, order: DeployOrder, listener: socket.socket, http: httpx.AsyncClient, keeper: AppKeeper) -> None:
        self.order, self.listener = order, listener
        self.task: asyncio.Task[None] | None = None
        self.supervised = SupervisedProcess(
            start=self._start,
            probe=self._probe,
            changed=lambda: keeper.show(self),
            report=report,
            # The server gives its rollouts up first; then it is killed.
            grace_s=GRACE_S + 4.0,
            start_s=order.start_s,
            max_restarts=order.max_restarts,
        )
        self._http = http
        self._own_url = ""

    async def is_closed(self) -> bool:
        """Return whether the process has closed its own socket."""
        try:
            await self._http.get(self._own_url)
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            return False
        return False

    async def _start(self) -> asyncio.subprocess.Process:
        with listen("127.0.0.1", 0) as own:
            self._own_url = f"{url_of(own)}/health"
            descriptors = [self.listener.fileno(), own.fileno()]
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "synth.local.deployments.worker", self.order.app),
                *map(str, descriptors),
                cwd=self.order.folder,
                env={**self.order.env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )

    async def _probe(self) -> str | None:
        key = self.order.env.get("ENVIRONMENT_API_KEY", "")
        try:
            reply = await self._http.get(self._own_url, headers={"X-API-Key": key.split(",")[0].strip()})
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return None if reply.status_code in _ALIVE else f"/health answers HTTP {reply.status_code}"


@dataclass
class AppKeeper:
    """Runs one deployment."""

    files: Deployment
    http: httpx.AsyncClient
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ordered: asyncio.Event = field(default_factory=asyncio.Event)
    worker: Worker | None = None
    state: DeploymentState = field(init=False)
    ending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def __post_init__(self) -> None:
        self.state = self.files.read() or DeploymentState(id=self.files.id)

    async def run(self) -> int:
        """Follow orders until the stop. Returns the exit code: 1 if the app was given up."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.ordered.set)
        self.state.supervisor_pid, self.state.supervisor_started = os.getpid(), start_of(os.getpid())
        self.ordered.set()
        try:
            while not self.stop.is_set():
                if self.ordered.is_set():
                    self.ordered.clear()
                    await self._follow_order()
                elif self.worker is None or self.worker.task is None or self.worker.task.done():
                    break
                else:
                    await first_of(self.stop.wait(), self.ordered.wait(), _done(self.worker.task))
        finally:
            await self._end_all()
        return 0 if self.stop.is_set() else 1

    def show(self, worker: Worker) -> None:
        """Write the health of the process that serves the app now."""
        if worker is not self.worker:
            return
        supervised = worker.supervised
        if supervised.health in ("healthy", "unhealthy") and supervised.health != self.state.health:
            report(f"{supervised.health}{': ' if supervised.problem else ''}{supervised.problem or ''}")
        self.state.pid, self.state.started = supervised.pid, supervised.started
        self.state.restarts = supervised.restarts
        if supervised.health not in ("waiting", "draining"):
            self.state.health, self.state.problem = supervised.health, supervised.problem or ""
        self._save()

    async def _follow_order(self) -> None:
        order = self.files.take()
        if order is None:
            return
        old = self.worker
        same = old is not None and (self.state.host, order.port) == (order.host, self.state.port)
        try:
            listener = old.listener if old is not None and same else listen(order.host, order.port)
        except (UserError, OSError) as error:
            self._refuse(order, str(error))
            return
        report(f"starting {order.app}")
        worker = Worker(order, listener, self.http, self)
        coming_up = asyncio.create_task(worker.supervised.come_up())
        await first_of(_done(coming_up), self.stop.wait())
        if not coming_up.done() or coming_up.result() is not None:
            await worker.supervised.end()
            if old is None or listener is not old.listener:
                listener.close()
            self._refuse(order, await coming_up or "it was ended")
            return
        self.worker = worker
        self.state.app, self.state.folder, self.state.host = order.app, order.folder, order.host
        self.state.url, self.state.port = url_of(listener), listener.getsockname()[1]
        # Whoever follows a supervisor that is killed meanwhile has to find the process that goes on.
        self.show(worker)
        worker.task = asyncio.create_task(worker.supervised.run())
        if old is not None:
            await self._replace(old)
            if old.listener is not listener:
                old.listener.close()
        self.state.order, self.state.refused = order.id, ""
        self._save()
        report(f"{self.files.id} is served at {self.state.url}")

    def _refuse(self, order: DeployOrder, why: str) -> None:
        report(f"the order was not followed: {why}")
        self.state.order, self.state.refused = order.id, why
        if self.worker is None:
            self.state.health, self.state.problem = "failed", why
        self._save()

    async def _replace(self, old: Worker) -> None:
        """Let a replaced process finish its calls, and wait until it accepts no new ones.

        It stops accepting at its own socket and at the shared one at once, so that every later call reaches the new
        process.
        """
        ending = asyncio.create_task(old.supervised.end())
        self.ending.add(ending)
        ending.add_done_callback(self.ending.discard)
        while not ending.done() and not await old.is_closed():
            await asyncio.wait([ending], timeout=_CLOSED_LOOK_S)

    async def _end_all(self) -> None:
        failed = self.state.health == "failed"
        problem = self.state.problem if failed else ""
        if self.worker is not None:
            await self.worker.supervised.end()
            if self.worker.task is not None:
                await self.worker.task
        await asyncio.gather(*self.ending)
        self.state.health, self.state.problem = "failed" if failed else "stopped", problem
        self.state.pid = self.state.started = self.state.supervisor_pid = self.state.supervisor_started = None
        self._save()
        report(self.state.health)

    def _save(self) -> None:
        self.files.write(self.state)


async def _done(task: asyncio.Task[object]) -> None:
    """Wait until a task has ended, and leave its result to others."""
    await asyncio.wait([task])


def report(line: str) -> None:
    """Write a line to the deployment's log."""
    process_files.report(f"deploy: {line}")


async def _run(files: Deployment) -> int:
    async with open_local_http(timeout=5.0) as http:
        return await AppKeeper(files, http).run()


def main() -> int:
    """Run the deployment whose order was left."""
    files = Deployment(Path(sys.argv[1]), sys.argv[2])
    try:
        with files.locked("supervisor", busy="a supervisor of this deployment runs already"):
            return asyncio.run(_run(files))
    except CliError as error:
        report(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())

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
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from synth.console.errors import CliError
from synth.console.plain_text import printable
from synth.errors import UserError
from synth.local.deployments.state import Deployment, DeploymentState, DeployOrder, Health
from synth.local.processes.http import open_local_http
from synth.local.processes.running import end_group, start_of
from synth.taskapp.server import GRACE_S, listen, url_of

_FIRST_DELAY_S = 0.2
_LAST_DELAY_S = 5.0
#: Seconds for which a process stays healthy before its crash is the first of a row.
_SETTLED_AFTER_S = 30.0
_PROBE_S = 2.0
_PROBE_STARTING_S = 0.1
#: The server gives its rollouts up first; then this ends it.
_DRAIN_S = GRACE_S + 4.0
#: An app may have keys of its own, which are not known here: refusing ours, it is there.
_ALIVE = (200, 400, 401, 403)


@dataclass
class Worker:
    """One process of the app. health_url: at its own socket. healthy_since: of the monotonic clock."""

    process: asyncio.subprocess.Process
    order: DeployOrder
    health_url: str
    healthy_since: float | None = None

    @property
    def settled(self) -> bool:
        """Whether it has been healthy for a while."""
        return self.healthy_since is not None and time.monotonic() - self.healthy_since >= _SETTLED_AFTER_S


@dataclass
class AppKeeper:
    """Runs one deployment."""

    files: Deployment
    http: httpx.AsyncClient
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ordered: asyncio.Event = field(default_factory=asyncio.Event)
    worker: Worker | None = None
    listener: socket.socket | None = None
    crashes: int = 0
    state: DeploymentState = field(init=False)
    draining: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

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
            while not self.stop.is_set() and (self.ordered.is_set() or self.worker is not None):
                if self.ordered.is_set():
                    self.ordered.clear()
                    await self._follow_order()
                elif self.worker is not None:
                    await self._watch(self.worker)
        finally:
            await self._end_all()
        return 0 if self.stop.is_set() else 1

    async def _follow_order(self) -> None:
        order = self.files.take()
        if order is None:
            return
        same = self.worker is not None and (self.state.host, order.port) == (order.host, self.state.port)
        listener: socket.socket | None = None
        try:
            listener = self.listener if same and self.listener else listen(order.host, order.port)
            _report(f"starting {order.app}")
            worker = await self._spawn(order, listener)
            refused = await self._comes_up(worker)
        except (UserError, OSError) as error:
            worker, refused = None, str(error)
        if refused or worker is None:
            if worker is not None:
                await _end(worker)
            if listener is not None and listener is not self.listener:
                listener.close()
            _report(f"the order was not followed: {refused}")
            self.state.order, self.state.refused = order.id, refused
            if self.worker is None:
                self.state.health, self.state.problem = "failed", refused
            self._save()
            return
        assert listener is not None
        old, old_listener = self.worker, self.listener
        self.worker, self.listener, self.crashes = worker, listener, 0
        if old is not None:
            # Whoever follows a supervisor that is killed meanwhile has to find the process that goes on.
            self._moves_to(worker, listener)
            await self._drain(old)
        self.state.order, self.state.refused = order.id, ""
        self._moves_to(worker, listener)
        _report(f"{self.files.id} is served at {self.state.url}")
        if old_listener is not None and old_listener is not listener:
            old_listener.close()

    async def _drain(self, old: Worker) -> None:
        """Let a replaced process finish its calls, and wait until it accepts no new ones.

        It stops accepting at its own socket and at the shared one at once, so that every later call reaches the new
        process.
        """
        ending = asyncio.create_task(_end(old))
        self.draining.add(ending)
        ending.add_done_callback(self.draining.discard)
        while not ending.done() and not await self._is_closed(old):
            await asyncio.wait([ending], timeout=_PROBE_STARTING_S)

    async def _is_closed(self, worker: Worker) -> bool:
        """Return whether a process has closed its own socket."""
        try:
            await self.http.get(worker.health_url)
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            return False
        return False

    async def _comes_up(self, worker: Worker, *, unless: asyncio.Event | None = None) -> str:
        """Wait until the worker is healthy. Returns its problem, "" if healthy. `unless` ends the wait early."""
        deadline = time.monotonic() + worker.order.start_s
        problem = "it does not answer"
        while time.monotonic() < deadline and not self.stop.is_set():
            if unless is not None and unless.is_set():
                return "an order came before it was healthy"
            if worker.process.returncode is not None:
                return f"it ended with {_reason(worker.process.returncode)} before it was healthy"
            problem = await self._health_problem(worker)
            if not problem:
                worker.healthy_since = time.monotonic()
                return ""
            await _wait_at_most(asyncio.ensure_future(worker.process.wait()), _PROBE_STARTING_S)
        return f"it was not healthy within {worker.order.start_s:g} s ({problem})"

    async def _watch(self, worker: Worker) -> None:
        """Look once at a process: is it there, and is it well?"""
        ended = asyncio.ensure_future(worker.process.wait())
        waits = [ended, asyncio.ensure_future(self.stop.wait()), asyncio.ensure_future(self.ordered.wait())]
        await asyncio.wait(waits, timeout=_PROBE_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.stop.is_set():
            return
        if worker.process.returncode is not None:
            await self._restart(worker)
            return
        problem = await self._health_problem(worker)
        health = "unhealthy" if problem else "healthy"
        if (self.state.health, self.state.problem) != (health, problem):
            _report(f"{health}{': ' if problem else ''}{problem}")
            self.state.health, self.state.problem = health, problem
            self._save()

    async def _restart(self, worker: Worker) -> None:
        """Start a crashed app again, or give it up."""
        assert worker.process.returncode is not None
        end_group(worker.process.pid, signal.SIGKILL)
        reason = f"it ended with {_reason(worker.process.returncode)}"
        self.crashes = 1 if worker.settled else self.crashes + 1
        self.state.pid = self.state.started = None
        if self.crashes > worker.order.max_restarts:
            self.state.health = "failed"
            self.state.problem = f"{reason}, {self.crashes} times in a row: it is given up"
            _report(self.state.problem)
            self.worker = None
            self._save()
            return
        delay = min(_LAST_DELAY_S, _FIRST_DELAY_S * 2 ** (self.crashes - 1))
        self.state.health, self.state.problem = "restarting", reason
        self.state.restarts += 1
        self._save()
        _report(f"{reason}; restarting in {delay:.1f} s")
        waits = [asyncio.ensure_future(event.wait()) for event in (self.stop, self.ordered)]
        await asyncio.wait(waits, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        # A new order may fix the crash, and its sender waits.
        if self.stop.is_set() or self.ordered.is_set():
            return
        assert self.listener is not None
        again = await self._spawn(worker.order, self.listener)
        self.worker = again
        self._now_runs(again, health="starting")
        if problem := await self._comes_up(again, unless=self.ordered):
            _report(problem)
            if again.process.returncode is None:
                # It hangs at its start, which is no better than a crash.
                await _end(again)
            return
        self._now_runs(again)

    def _moves_to(self, worker: Worker, listener: socket.socket) -> None:
        order = worker.order
        self.state.app, self.state.folder, self.state.host = order.app, order.folder, order.host
        self.state.url, self.state.port, self.state.restarts = url_of(listener), listener.getsockname()[1], 0
        self._now_runs(worker)

    def _now_runs(self, worker: Worker, health: Health = "healthy") -> None:
        self.state.pid, self.state.started = worker.process.pid, start_of(worker.process.pid)
        self.state.health, self.state.problem = health, ""
        self._save()

    async def _spawn(self, order: DeployOrder, listener: socket.socket) -> Worker:
        own = listen("127.0.0.1", 0)
        descriptors = [listener.fileno(), own.fileno()]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "synth.local.deployments.worker", order.app, *map(str, descriptors)),
                cwd=order.folder,
                env={**order.env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
            return Worker(process, order, f"{url_of(own)}/health")
        finally:
            own.close()

    async def _health_problem(self, worker: Worker) -> str:
        key = worker.order.env.get("ENVIRONMENT_API_KEY", "")
        try:
            reply = await self.http.get(worker.health_url, headers={"X-API-Key": key.split(",")[0].strip()})
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return "" if reply.status_code in _ALIVE else f"/health answers HTTP {reply.status_code}"

    async def _end_all(self) -> None:
        if self.worker is not None:
            await _end(self.worker)
        await asyncio.gather(*self.draining)
        if self.state.health != "failed":
            self.state.health, self.state.problem = "stopped", ""
        self.state.pid = self.state.started = self.state.supervisor_pid = self.state.supervisor_started = None
        self._save()
        _report(self.state.health)

    def _save(self) -> None:
        self.files.write(self.state)


async def _end(worker: Worker) -> None:
    """End a process. It may finish its calls first."""
    if worker.process.returncode is None:
        worker.process.send_signal(signal.SIGTERM)
        await _wait_at_most(asyncio.ensure_future(worker.process.wait()), _DRAIN_S)
    end_group(worker.process.pid, signal.SIGKILL)
    await worker.process.wait()


async def _wait_at_most(what: asyncio.Future[Any], timeout: float) -> None:
    await asyncio.wait([what], timeout=timeout)
    what.cancel()


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def _report(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} deploy: {printable(line)}\n")
    sys.stderr.flush()


async def _run(files: Deployment) -> int:
    async with open_local_http(timeout=5.0) as http:
        return await AppKeeper(files, http).run()


def main() -> int:
    """Run the deployment whose order was left."""
    files = Deployment(Path(sys.argv[1]), sys.argv[2])
    try:
        with files.locked("supervisor", else_say="a supervisor of this deployment runs already"):
            return asyncio.run(_run(files))
    except CliError as error:
        _report(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""The supervisor: starts every process of the embedded cluster, restarts dead ones, drains them in order.

Invariants: a process is in the state file from its start on; a restarted process keeps its port.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from typing import NoReturn

import httpx

from synth.bus.server.embedded import move_streams_to_their_account
from synth.bus.server.topology import DAMAGE
from synth.console.errors import CliError
from synth.local.cluster.plan import GRACE_S, ClusterPlan, ProcessSpec
from synth.local.cluster.service_processes import ServiceProcesses
from synth.local.cluster.state import ClusterState, ProcessState, StateFile
from synth.local.processes.files import rotate_log, write_private
from synth.local.processes.http import open_local_http
from synth.local.processes.running import end_group, start_of
from synth.local.processes.supervisor import Report, SupervisedProcess, first_of
from synth.runtime.lines import split_lines

_NATS_GRACE_S = 5.0
# A nats-server whose disk was full takes no message again, however much room there is, until it is started again. What
# it has acknowledged is on its disk.
_ILL_BUS_S = 15.0
#: What nats-server says of a stream whose description is damaged.
_NOT_RECOVERED = "could not be recovered"
#: nats-server reports the same of a stream that is being made, for a moment.
DAMAGED_AFTER_S = 5.0
# A service gives up its own grace first; then this one ends it.
_DRAIN_S = GRACE_S + 4.0
_ERASE_AGAIN_S = 5.0


class ClusterProcess(SupervisedProcess):
    """One process of the cluster, and its part of the state."""

    def __init__(self, spec: ProcessSpec, state: ProcessState, supervisor: Supervisor) -> None:
        nats = spec is supervisor.plan.nats
        super().__init__(
            start=lambda: supervisor.processes.start(spec),
            probe=self._probe,
            changed=lambda: supervisor.show(self),
            report=lambda line: supervisor.report(f"{spec.name}: {line}"),
            grace_s=_NATS_GRACE_S if nats else _DRAIN_S,
            ill_s=_ILL_BUS_S if nats else None,
        )
        self.spec, self.state, self._supervisor = spec, state, supervisor
        self._damage_since: float | None = None
        self._damage_reported = False

    async def _probe(self) -> str | None:
        problem = await health_problem(self._supervisor.http, self.spec.health_url)
        if not is_damage(problem):
            self._damage_since, self._damage_reported = None, False
            return problem
        now = time.monotonic()
        self._damage_since = self._damage_since or now
        if now - self._damage_since > DAMAGED_AFTER_S and not self._damage_reported:
            self.report(f"it is not healthy ({problem})")
            self._damage_reported = True
        return problem


@dataclass
class Supervisor:
    """Runs one cluster. `report` is called with a line for each thing that happens."""

    plan: ClusterPlan
    state: ClusterState
    file: StateFile
    report: Report
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    kill: asyncio.Event = field(default_factory=asyncio.Event)
    all_healthy: asyncio.Event = field(default_factory=asyncio.Event)
    supervised: list[ClusterProcess] = field(init=False)
    processes: ServiceProcesses = field(init=False)
    http: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        logs = self.plan.nats.log.parent
        self.processes = ServiceProcesses(self.plan.data, self.plan.parents_env, logs / "parents.log")
        states = {p.name: p for p in self.state.processes}
        self.supervised = [ClusterProcess(spec, states[spec.name], self) for spec in self.plan.specs]

    async def run(self) -> None:
        """Run the cluster until `stop` is set. Raises `CliError` when the bus does not come up."""
        self.state.supervisor_pid = os.getpid()
        self.state.supervisor_started = start_of(os.getpid())
        self._install_signal_handlers()
        for spec in (*self.plan.specs, self.plan.provision):
            rotate_log(spec.log)
        write_private(self.plan.nats_config, self.plan.nats_text.encode())
        move_streams_to_their_account(self.plan.nats_config.parent / "store")
        nats, services = self.supervised[0], self.supervised[1:]
        async with open_local_http(timeout=2.0) as self.http:
            runners, erasing = [asyncio.create_task(nats.run())], None
            try:
                await self.processes.prepare(self.plan.services)
                if await self._bus_is_ready(nats):
                    runners += [asyncio.create_task(s.run()) for s in services]
                    erasing = asyncio.create_task(self._keep_erasing())
                await self.stop.wait()
            finally:
                self.stop.set()
                if erasing is not None:
                    erasing.cancel()
                await self._drain()
                await self.processes.close()
                self.state.supervisor_pid = self.state.supervisor_started = None
                self._save()
            await asyncio.gather(*runners)

    def show(self, s: ClusterProcess) -> None:
        """Write what is new of a process."""
        s.state.pid, s.state.started, s.state.restarts = s.pid, s.started, s.restarts
        if s.failing and not s.state.failing:
            self.report(f"{s.spec.name} cannot start: {s.failed_starts} tries, see {s.spec.log}")
        s.state.failing = s.failing
        if not all(one.healthy for one in self.supervised):
            if s.pid is None:
                self.all_healthy.clear()
        elif not self.all_healthy.is_set():
            self.all_healthy.set()
            self.report(f"all healthy: {self.state.url}")
        self._save()

    def _install_signal_handlers(self) -> None:
        def asked() -> None:
            # The second time, somebody is impatient.
            (self.kill if self.stop.is_set() else self.stop).set()

        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sign, asked)

    async def _bus_is_ready(self, nats: ClusterProcess) -> bool:
        # A large log takes minutes to be read.
        while not nats.healthy and not self.stop.is_set():
            if nats.failing:
                raise CliError(f"nats-server cannot start ({nats.failed_starts} tries)", where=str(nats.spec.log))
            await asyncio.sleep(0.02)
        if self.stop.is_set():
            return False
        process = await self.processes.start(self.plan.provision)
        # It gives up by itself if the bus makes no progress.
        await first_of(process.wait(), self.stop.wait())
        if process.returncode is None:
            end_group(process.pid, signal.SIGKILL)
            await process.wait()
            return False
        if process.returncode != 0:
            log = self.plan.provision.log
            lines = split_lines(log.read_text(errors="replace")) if log.exists() else []
            why = lines[-1] if lines else "(nothing)"
            what = f"provisioning the bus ended with code {process.returncode}"
            raise CliError(what, fix=f"its log ends with: {why}", where=str(log))
        return True

    async def _keep_erasing(self) -> NoReturn:
        """Erase the events of deleted jobs and files, until the stop."""
        # Imported here: to look at a cluster needs no client of its bus.
        from synth.bus.history.store_identity import open_store
        from synth.erasure.sweep import Sweeper
        from synth.local.cluster.backup import connected_as_bus
        from synth.runtime import logs

        # The supervisor shows the user what happens. Only errors are logged here.
        logs.configure("sweep", level="error")
        while True:
            try:
                async with connected_as_bus(self.state, self.plan.nats.port) as bus:
                    await Sweeper(bus, await open_store(bus, f"file:{self.plan.blobs}")).run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the services go on without it
                self.report(f"deleted jobs and files cannot be erased now: {error!r}")
                await asyncio.sleep(_ERASE_AGAIN_S)

    async def _drain(self) -> None:
        # The gateway after the others, as its ledger takes in what they have stored last; the bus after all.
        gateways = [s for s in self.supervised if s.spec.name == "gateway"]
        nats, *services = self.supervised
        for group in ([s for s in services if s not in gateways], gateways, [nats]):
            await asyncio.gather(*(s.end(at_once=self.kill) for s in group))

    def _save(self) -> None:
        self.file.write(self.state)


async def health_problem(http: httpx.AsyncClient, url: str) -> str | None:
    """Request the health of a process; return its problem, or None."""
    try:
        reply = await http.get(url)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if reply.status_code == 200:
        return None
    try:
        # nats-server has an error in place of a list.
        unhealthy, error = reply.json().get("unhealthy") or {}, reply.json().get("error")
    except (ValueError, AttributeError):
        unhealthy, error = {}, None
    problems = "; ".join(f"{name}: {problem}" for name, problem in unhealthy.items())
    return problems or error or f"status {reply.status_code}"


def is_damage(problem: str | None) -> bool:
    """Whether a problem is that stored data is lost, which does not pass by itself."""
    return problem is not None and (f"{DAMAGE}: " in problem or _NOT_RECOVERED in problem)

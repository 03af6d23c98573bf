"""The supervisor: starts every process of the embedded cluster, restarts dead ones, drains them in order.

Invariants: a process is in the state file from its start on; a restarted process keeps its port; each leads its own
process group, so that Ctrl-C reaches only the supervisor, and the children of a dead process are ended with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from synth.bus.server.embedded import move_streams_to_their_account
from synth.bus.server.topology import DAMAGE
from synth.console.errors import CliError
from synth.local.cluster.plan import GRACE_S, ClusterPlan, ProcessSpec
from synth.local.cluster.service_processes import ServiceProcesses
from synth.local.cluster.state import ClusterState, ProcessState, StateFile
from synth.local.processes.http import open_local_http
from synth.local.processes.running import end_group, start_of
from synth.runtime.forking.server import ForkedProcess
from synth.runtime.lines import split_lines

_FIRST_DELAY_S = 0.2
_LAST_DELAY_S = 5.0
_SETTLED_AFTER_S = 30.0
_MAX_FAILED_STARTS = 5
_PROBE_INTERVAL_S = 0.2
_PROBE_HEALTHY_INTERVAL_S = 2.0
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

Report = Callable[[str], None]


@dataclass
class SupervisedProcess:
    """One process and its health. failed_starts: starts in a row that did not become healthy.

    ill_since: when it became unhealthy after it was healthy; on the monotonic clock. damage_since: when it first
    reported that stored data is lost, without another report since. damage_reported: to the user.
    """

    spec: ProcessSpec
    state: ProcessState
    process: asyncio.subprocess.Process | ForkedProcess | None = None
    healthy_since: float | None = None
    health: str = "waiting"
    deaths: int = 0
    failed_starts: int = 0
    probed_at: float = 0.0
    ill_since: float | None = None
    damage_since: float | None = None
    damage_reported: bool = False

    @property
    def healthy(self) -> bool:
        return self.health == "healthy"


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
    supervised: list[SupervisedProcess] = field(init=False)
    _processes: ServiceProcesses = field(init=False)

    def __post_init__(self) -> None:
        logs = self.plan.nats.log.parent
        self._processes = ServiceProcesses(self.plan.data, self.plan.parents_env, logs / "parents.log")
        states = {p.name: p for p in self.state.processes}
        self.supervised = [SupervisedProcess(spec, states[spec.name]) for spec in self.plan.specs]

    async def run(self) -> None:
        """Run the cluster until `stop` is set. Raises `CliError` when the bus does not come up."""
        self.state.supervisor_pid = os.getpid()
        self.state.supervisor_started = start_of(os.getpid())
        self._install_signal_handlers()
        rotate_logs([*self.plan.specs, self.plan.provision])
        write_private(self.plan.nats_config, self.plan.nats_text)
        move_streams_to_their_account(self.plan.nats_config.parent / "store")
        nats, services = self.supervised[0], self.supervised[1:]
        async with open_local_http(timeout=2.0) as http:
            probes = asyncio.create_task(self._probe_all(http))
            runners, erasing = [asyncio.create_task(self._keep_running(nats))], None
            try:
                await self._processes.prepare(self.plan.services)
                if await self._bus_is_ready(nats):
                    runners += [asyncio.create_task(self._keep_running(s)) for s in services]
                    erasing = asyncio.create_task(self._keep_erasing())
                await self.stop.wait()
            finally:
                self.stop.set()
                if erasing is not None:
                    erasing.cancel()
                await self._drain(runners)
                await self._processes.close()
                probes.cancel()
                self.state.supervisor_pid = self.state.supervisor_started = None
                self._save()

    def _install_signal_handlers(self) -> None:
        def asked() -> None:
            # The second time, somebody is impatient.
            (self.kill if self.stop.is_set() else self.stop).set()

        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sign, asked)

    async def _bus_is_ready(self, nats: SupervisedProcess) -> bool:
        # A large log takes minutes to be read.
        while not nats.healthy and not self.stop.is_set():
            if nats.health == "failing":
                raise CliError(f"nats-server cannot start ({nats.failed_starts} tries)", where=str(nats.spec.log))
            await asyncio.sleep(0.02)
        if self.stop.is_set():
            return False
        process = await self._processes.start(self.plan.provision)
        # It gives up by itself if the bus makes no progress.
        ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(self.stop.wait())
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ended.done():
            end_group(process.pid, signal.SIGKILL)
            await ended
            return False
        if (code := ended.result()) != 0:
            log = self.plan.provision.log
            lines = split_lines(log.read_text(errors="replace")) if log.exists() else []
            why = lines[-1] if lines else "(nothing)"
            what = f"provisioning the bus ended with code {code}"
            raise CliError(what, fix=f"its log ends with: {why}", where=str(log))
        return True

    async def _keep_running(self, s: SupervisedProcess) -> None:
        """Start a process, and restart it whenever it ends, until the stop."""
        while not self.stop.is_set():
            s.health, s.healthy_since, s.probed_at, s.ill_since = "starting", None, 0.0, None
            s.process = await self._processes.start(s.spec)
            s.state.pid, s.state.started = s.process.pid, start_of(s.process.pid)
            self._save()
            code = await s.process.wait()
            end_group(s.process.pid, signal.SIGKILL)
            s.state.pid = s.state.started = None
            if self.stop.is_set():
                s.health = "stopped"
                return
            delay = self._record_death(s, code)
            self.report(f"{s.spec.name} ended ({_reason(code)}); restarting in {delay:.1f} s")
            self._save()
            await _wait_at_most(self.stop, delay)

    async def _keep_erasing(self) -> None:
        """Erase the events of what is deleted, until the stop."""
        # Imported here: whoever looks at a cluster needs no client of its bus.
        from synth.local.cluster.eraser import erase_deleted

        while True:
            try:
                await erase_deleted(self.state, self.plan.blobs)
            except Exception as error:  # noqa: BLE001 - whatever it is, the services go on without it
                self.report(f"what is deleted cannot be erased now: {error!r}")
                await asyncio.sleep(_LAST_DELAY_S)

    def _record_death(self, s: SupervisedProcess, code: int) -> float:
        settled = s.healthy_since is not None and time.monotonic() - s.healthy_since >= _SETTLED_AFTER_S
        s.deaths = 1 if settled else s.deaths + 1
        s.failed_starts = s.failed_starts + 1 if s.healthy_since is None else 0
        s.state.restarts += 1
        s.health = "restarting"
        if s.failed_starts >= _MAX_FAILED_STARTS:
            s.health = "failing"
            if not s.state.failing:
                self.report(f"{s.spec.name} cannot start: {s.failed_starts} tries, see {s.spec.log}")
            s.state.failing = True
        self.all_healthy.clear()
        return min(_LAST_DELAY_S, _FIRST_DELAY_S * 2 ** (s.deaths - 1))

    async def _probe_all(self, http: httpx.AsyncClient) -> None:
        """Probe every process, more often while it is not healthy."""
        while True:
            now = time.monotonic()
            due = [
                s
                for s in self.supervised
                if s.state.pid and now - s.probed_at >= (_PROBE_HEALTHY_INTERVAL_S if s.healthy else 0)
            ]
            await asyncio.gather(*(self._probe(http, s) for s in due))
            if not self.all_healthy.is_set() and all(s.healthy for s in self.supervised):
                self.all_healthy.set()
                self.report(f"all healthy: {self.state.url}")
            await asyncio.sleep(_PROBE_INTERVAL_S)

    async def _probe(self, http: httpx.AsyncClient, s: SupervisedProcess) -> None:
        pid, s.probed_at = s.state.pid, time.monotonic()
        problem = await health_problem(http, s.spec.health_url)
        if s.state.pid != pid or pid is None:
            return
        if not is_damage(problem):
            s.damage_since, s.damage_reported = None, False
        else:
            s.damage_since = s.damage_since or s.probed_at
            if s.probed_at - s.damage_since > DAMAGED_AFTER_S and not s.damage_reported:
                self.report(f"{s.spec.name} is not healthy ({problem})")
                s.damage_reported = True
        if problem is None:
            s.healthy_since = s.healthy_since or time.monotonic()
            s.health, s.failed_starts, s.ill_since = "healthy", 0, None
            if s.state.failing:
                s.state.failing = False
                self._save()
        elif s.healthy_since is not None:
            s.health = "unhealthy"
            s.ill_since = s.ill_since or time.monotonic()
            if s is self.supervised[0] and time.monotonic() - s.ill_since > _ILL_BUS_S:
                self.report(f"{s.spec.name} is ill for {_ILL_BUS_S:.0f} s ({problem}); ending it")
                end_group(pid, signal.SIGKILL)

    async def _drain(self, runners: list[asyncio.Task[None]]) -> None:
        # The gateway after the others, as its ledger takes in what they have stored last.
        gateways = [s for s in self.supervised if s.spec.name == "gateway"]
        await self._end([s for s in self.supervised[1:] if s not in gateways], _DRAIN_S)
        await self._end(gateways, _DRAIN_S)
        await self._end(self.supervised[:1], _NATS_GRACE_S)
        for task in runners:
            task.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def _end(self, group: list[SupervisedProcess], grace: float) -> None:
        running = [s for s in group if s.process is not None and s.process.returncode is None]
        for s in running:
            assert s.process is not None
            s.health = "draining"
            # The leader alone: a service ends its own children in its own order.
            s.process.send_signal(signal.SIGTERM)
        ended = asyncio.gather(*(s.process.wait() for s in running if s.process is not None))
        impatient = asyncio.create_task(self.kill.wait())
        await asyncio.wait([ended, impatient], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        for s in running:
            assert s.process is not None
            if s.process.returncode is None:
                self.report(f"{s.spec.name} did not drain in {grace:.0f} s")
            end_group(s.process.pid, signal.SIGKILL)
        await ended

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


async def _wait_at_most(event: asyncio.Event, timeout: float) -> None:
    """Wait for the event, `timeout` seconds at most."""
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def rotate_logs(specs: list[ProcessSpec]) -> None:
    """Begin new logs; the last run's stay beside them as `.log.1`."""
    for spec in specs:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        if spec.log.exists():
            spec.log.replace(spec.log.with_name(f"{spec.log.name}.1"))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)

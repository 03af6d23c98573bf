"""The RL run through the platform: a real cluster in a directory of its own, a task app, and a job that is followed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pydantic import SecretStr

from benchmarks.workload import Workload
from synth.bus.connection import Connection, connect
from synth.bus.replay import follow
from synth.bus.server.embedded import free_port
from synth.events import JobFailed, JobStarted, TrainStep
from synth.local.cluster.state import ClusterState, StateFile
from synth.runtime.settings import ServiceSettings

ROOT = Path(__file__).parents[1]
_JOB_DEADLINE_S = 420.0
_START_S = 30.0
_ENGINE_CPU = re.compile(rb"^synth_engine_cpu_seconds_total\{.*\} (\S+)$", re.MULTILINE)
# These parts run the model; the others are the platform's cost.
MODEL_PARTS = ("engine", "training")


class RunFailed(Exception):
    """The job, or a process that it needs, failed, so that nothing was measured."""


@dataclass
class Measured:
    """A job as its log and its processes tell it.

    first_step_s: from `job.created` to `train.step` 1. steps: values of the counted steps; step_s: seconds between
    their events. cpu_s: CPU seconds over the counted steps, by part.
    """

    first_step_s: float = 0.0
    start_s: float = 0.0
    steps: list[dict[str, float]] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """A running cluster, and the task app beside it."""

    folder: Path
    app: subprocess.Popen[bytes]
    task_url: str

    @property
    def models(self) -> Path:
        return self.folder / ".synth" / "models"

    def state(self) -> ClusterState:
        """Return its processes and passwords."""
        state = StateFile(self.folder / ".synth").read()
        assert state is not None
        return state

    def submit(self, toml: Path, *flags: str) -> str:
        """Submit a job; returns its id."""
        return str(json.loads(synthctl(self.folder, "submit", str(toml), *flags, "--detach", "-o", "json"))["id"])

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of every part since it started: user and system, the model's own apart."""
        spent: dict[str, float] = {}
        for process in self.state().processes:
            assert process.pid is not None
            spent[process.name] = _cpu(psutil.Process(process.pid))
            if process.name == "inference":
                spent["engine"] = _engine_cpu(process.port)
                spent["inference"] -= spent["engine"]
            if process.name == "trainer":
                spent["training"] = sum(_cpu(c) for c in psutil.Process(process.pid).children())
        supervisor = self.state().supervisor_pid
        assert supervisor is not None
        return {**spent, "supervisor": _cpu(psutil.Process(supervisor)), "task app": _cpu(psutil.Process(self.app.pid))}


@contextlib.contextmanager
def running_cluster(folder: Path, *app_command: str, engine: str = "transformers") -> Iterator[Cluster]:
    """Run a cluster with a task app during the block. app_command: a module that takes `--port`, and its arguments."""
    (folder / ".synth").mkdir(parents=True, exist_ok=True)
    synthctl(folder, "up", "--detach", "--port", str(free_port()), "--engine", engine)
    try:
        with _task_app(folder, app_command or ("benchmarks.tax_app",)) as (app, url):
            yield Cluster(folder, app, url)
    finally:
        synthctl(folder, "down")


def synthctl(folder: Path, *arguments: str) -> bytes:
    """Run `synthctl …` in a directory; returns its output. Raises `RunFailed` with its last lines."""
    command = [str(Path(sys.executable).parent / "synthctl"), *arguments]
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, check=False)
    if done.returncode != 0:
        raise RunFailed(f"synthctl {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


async def measure(cluster: Cluster, workload: Workload) -> Measured:
    """Run the workload's job to its last step."""
    toml = cluster.folder / f"{workload.model}.toml"
    toml.write_text(workload.toml(cluster.task_url))
    job_id = await asyncio.to_thread(cluster.submit, toml)
    measured = Measured()
    bus = await reader(cluster.state())
    try:
        async with asyncio.timeout(_JOB_DEADLINE_S):
            await _follow(bus, cluster, workload, job_id, measured)
    except TimeoutError as error:
        raise RunFailed(f"{job_id} had not ended after {_JOB_DEADLINE_S:.0f} s") from error
    finally:
        await bus.close()
    return measured


async def _follow(bus: Connection, cluster: Cluster, workload: Workload, job_id: str, measured: Measured) -> None:
    created = last = 0.0
    before: dict[str, float] = {}
    async for recorded in follow(bus, [f"train.step.*.{job_id}", f"job.*.*.{job_id}"]):
        at = recorded.time.timestamp()
        match recorded.event:
            case TrainStep(step=step, values=values):
                if step == 1:
                    measured.first_step_s = at - created
                if step == workload.warmup:
                    before = cluster.cpu_seconds()
                if step > workload.warmup:
                    measured.steps.append(values)
                    measured.step_s.append(at - last)
                # Before the last: when that is announced, the training process has begun to write the model.
                if step == workload.steps - 1:
                    after = cluster.cpu_seconds()
                    measured.cpu_s = {part: after[part] - before[part] for part in after}
                last = at
            case JobStarted():
                measured.start_s = at - created
            case JobFailed(problem=problem):
                raise RunFailed(f"{job_id}: {problem.text()}")
            case _ if recorded.type == "job.created":
                created = at
            case _ if recorded.type == "job.succeeded":
                return
            case _ if recorded.type in ("job.rejected", "job.refused", "job.cancelled"):
                raise RunFailed(f"{job_id}: {recorded.type} {recorded.event}")


async def reader(state: ClusterState) -> Connection:
    """Return a connection that may read the log: as the gateway, since it must be one of the bus's users."""
    nats = next(p for p in state.processes if p.name == "nats")
    settings = ServiceSettings(
        nats_url=f"nats://127.0.0.1:{nats.port}", nats_user="gateway", nats_password=SecretStr(state.users["gateway"])
    )
    return await connect(settings, "gateway")


@contextlib.contextmanager
def _task_app(folder: Path, app_command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    command = [sys.executable, "-m", *app_command, "--port", str(port)]
    with (folder / "task_app.log").open("wb") as log:
        app = subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=log, stderr=log)
    try:
        _wait_up(app, f"http://127.0.0.1:{port}/", folder / "task_app.log")
        yield app, f"http://127.0.0.1:{port}"
    finally:
        app.terminate()
        app.wait(15)


def _wait_up(app: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and app.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RunFailed(f"the task app does not answer: {log.read_text()}")


def clean_environment() -> dict[str, str]:
    """Ours, without what would point the client at another cluster."""
    foreign = ("SYNTH_", "ENVIRONMENT_API_KEY", "BACKEND_BASE_URL", "TASK_APP_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _engine_cpu(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        return sum(float(value) for value in _ENGINE_CPU.findall(reply.read()))

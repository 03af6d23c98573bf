"""Starting, ending and looking at the embedded cluster from another process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from synth.bus.server.embedded import binary
from synth.console.errors import CliError
from synth.local.cluster.env_file import ADDRESS, merge_env_file, write_address
from synth.local.cluster.gpu_report import GpuReport, describe_device, report_gpus
from synth.local.cluster.plan import HOST, choose_ports, gateway_port, outbound
from synth.local.cluster.state import ClusterState, ProcessState, StateFile, end_leftovers
from synth.local.cluster.supervisor import DAMAGED_AFTER_S, health_problem, is_damage
from synth.local.devices.plan import DevicePlan
from synth.local.devices.probe import GpuList, read_gpus
from synth.local.processes.files import failure
from synth.local.processes.files import start_detached as start_detached_module
from synth.local.processes.http import open_local_http
from synth.local.processes.running import end_leader, is_alive
from synth.runtime.environment.env_file import read_env_file

# Services drain, then the bus does.
_STOP_TIMEOUT_S = 30.0
_LOOK_INTERVAL_S = 0.3
#: nats-server looks at its disk for its health: on a busy one that takes seconds.
_HEALTH_S = 10.0
_STARTING_S = 20.0


class ProcessReport(msgspec.Struct, kw_only=True):
    """One process as `synthctl status` shows it. health: healthy, unhealthy, starting, failing or down."""

    name: str
    health: str
    port: int
    pid: int | None
    restarts: int
    uptime_s: float | None
    problem: str | None = None


class ClusterReport(msgspec.Struct, kw_only=True):
    """The whole cluster. state: healthy, degraded, orphaned (its supervisor died) or down.

    gpus: of this machine. gpu_problem: why they could not be read; "" if they could.
    device: if the cluster uses no GPU, its device and the reason; "" if it uses one.
    """

    state: str
    url: str
    supervisor_pid: int | None
    processes: list[ProcessReport]
    gpus: list[GpuReport] = []
    gpu_problem: str = ""
    device: str = ""


@dataclass(frozen=True)
class PreparedCluster:
    """A cluster that is ready to start. notes: the changes that preparing it made, for the user to read."""

    state: ClusterState
    notes: list[str]


def prepare_cluster(
    file: StateFile,
    services: tuple[str, ...],
    *,
    port: int | None,
    env_file: Path,
    plan: Callable[[], tuple[DevicePlan, str]],
) -> PreparedCluster:
    """Prepare the start under the lock: end processes of a dead supervisor, plan devices, choose ports, write `.env`.

    Secrets are kept, or made the first time.
    port: of the gateway; None for its earlier port, `DEFAULT_PORT` the first time.
    plan: decides what each process computes on, and with which Python inference runs ("" for ours). It is called after
    the processes of an earlier cluster have released their GPUs.
    Raises `CliError`, having started nothing, if the port is taken or nats-server is missing; and what `plan` raises.
    """
    binary()
    state = file.read() or ClusterState()
    state.check_restored()
    notes: list[str] = []
    if ended := end_leftovers(state):
        notes.append(f"ended what an earlier cluster left behind: {', '.join(ended)}")
    state.devices, state.inference_python = plan()
    choose_ports(state, services, port=port or gateway_port(state))
    present = read_env_file(env_file) | {k: v for k, v in os.environ.items() if v}
    # A key that the user's clients already send must be one that the cluster knows.
    state.api_key = present.get("SYNTH_API_KEY", state.api_key)
    state.environment_key = present.get("ENVIRONMENT_API_KEY", state.environment_key)
    state.supervisor_pid = state.supervisor_started = None
    file.write(state)
    keys = {"SYNTH_API_KEY": state.api_key, "ENVIRONMENT_API_KEY": state.environment_key}
    added = merge_env_file(env_file, keys)
    if write_address(env_file, f"{state.url}/api"):
        added.append(ADDRESS)
    if added:
        notes.append(f"wrote {', '.join(added)} to {env_file}")
    allowed = " ".join(f"{name}={value}" for name, value in outbound().items())
    notes.append(f"jobs may call public addresses, and those allowed by {allowed}")
    return PreparedCluster(state, notes)


def start_detached(
    file: StateFile, data: Path, services: tuple[str, ...], *, timeout: float, show: Callable[[str], None]
) -> None:
    """Start the supervisor in the background and wait until all is healthy.

    timeout: seconds until one more process is healthy. A busy machine may need longer for all of them.
    Raises `CliError` with the last lines of the failed process's log, after ending everything that was started.
    """
    log = data / "logs" / "supervisor.log"
    supervisor = start_detached_module("synth.local.cluster.detached", str(data), *services, log=log)
    try:
        _wait_all_healthy(file, data, supervisor, timeout, show)
    except BaseException:
        supervisor.terminate()
        try:
            supervisor.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
        raise


def _wait_all_healthy(
    file: StateFile, data: Path, supervisor: subprocess.Popen[bytes], timeout: float, show: Callable[[str], None]
) -> None:
    deadline, healthy, damage_since = time.monotonic() + timeout, 0, 0.0
    while True:
        if supervisor.poll() is not None:
            raise _failed("the supervisor ended", data, "supervisor")
        report = inspect_cluster(file, with_gpus=False)
        late = [p for p in report.processes if p.health != "healthy"]
        if report.state == "healthy" and report.supervisor_pid == supervisor.pid:
            return
        if failing := [p for p in late if p.health == "failing"]:
            raise _failed(f"{failing[0].name} cannot start ({failing[0].restarts} tries)", data, failing[0].name)
        if (now_healthy := len(report.processes) - len(late)) > healthy:
            deadline, healthy = time.monotonic() + timeout, now_healthy
        damaged = [p for p in late if is_damage(p.problem)]
        damage_since = (damage_since or time.monotonic()) if damaged else 0.0
        if damaged and time.monotonic() - damage_since > DAMAGED_AFTER_S:
            what = f"stored data is lost: {damaged[0].name} reports {damaged[0].problem}"
            raise CliError(what, fix="restore a backup: synthctl restore", where=str(data))
        if time.monotonic() > deadline:
            first = late[0] if late else None
            what = f"{first.name} is not healthy" if first else "the supervisor does not answer"
            why = f" ({first.problem})" if first and first.problem else ""
            name = first.name if first else "supervisor"
            raise _failed(
                f"{what}, and nothing else became healthy for {timeout:.0f} s{why}; --timeout allows more", data, name
            )
        show(f"waiting for {', '.join(p.name for p in late)}")
        time.sleep(_LOOK_INTERVAL_S)


def _failed(what: str, data: Path, name: str) -> CliError:
    return failure(what, data / "logs" / f"{name}.log")


def stop_cluster(file: StateFile) -> bool:
    """End the cluster; return whether there was one. Its data stays."""
    state = file.read()
    if state is None:
        return False
    ran = end_leader(state.supervisor_pid, state.supervisor_started, grace=_STOP_TIMEOUT_S)
    state = file.read() or state
    left = end_leftovers(state)
    if left or state.supervisor_pid is not None:
        state.supervisor_pid = state.supervisor_started = None
        for p in state.processes:
            p.pid = p.started = None
        file.write(state)
    return ran or bool(left)


def inspect_cluster(file: StateFile, *, with_gpus: bool = True) -> ClusterReport:
    """Ask every process for its health, and report on the cluster. with_gpus: ask for the GPUs too, which is slow."""
    state = file.read()
    listed = read_gpus() if with_gpus else GpuList(())
    gpus, problem = report_gpus(state, file.path.parent, listed), listed.problem
    if state is None:
        return ClusterReport(state="down", url="", supervisor_pid=None, processes=[], gpus=gpus, gpu_problem=problem)
    supervised = is_alive(state.supervisor_pid, state.supervisor_started)
    processes = asyncio.run(_report_all(state))
    up = [p for p in processes if p.pid is not None]
    if not supervised:
        health = "orphaned" if up else "down"
    else:
        health = "healthy" if all(p.health == "healthy" for p in processes) else "degraded"
    pid = state.supervisor_pid if supervised else None
    device = "" if health == "down" else describe_device(state.devices)
    return ClusterReport(
        state=health,
        url=state.url,
        supervisor_pid=pid,
        processes=processes,
        gpus=gpus,
        gpu_problem=problem,
        device=device,
    )


async def _report_all(state: ClusterState) -> list[ProcessReport]:
    async with open_local_http(timeout=_HEALTH_S) as http:
        return list(await asyncio.gather(*(_report(http, state, p) for p in state.processes)))


async def _report(http: httpx.AsyncClient, state: ClusterState, p: ProcessState) -> ProcessReport:
    alive = is_alive(p.pid, p.started)
    health, problem = "down", None
    if alive:
        port = state.nats_http_port if p.name == "nats" else p.port
        problem = await health_problem(http, f"http://{HOST}:{port}/healthz")
        health = "healthy" if problem is None else "unhealthy"
    uptime = time.time() - p.started if alive and p.started is not None else None
    if health == "unhealthy" and uptime is not None and uptime < _STARTING_S:
        health = "starting"
    if health != "healthy" and p.failing:
        health = "failing"
    return ProcessReport(
        name=p.name,
        health=health,
        port=p.port,
        pid=p.pid if alive else None,
        restarts=p.restarts,
        uptime_s=uptime,
        problem=problem,
    )

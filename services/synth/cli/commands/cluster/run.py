"""`synthctl up`, `down` and `status`: the embedded cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data
from synth.cli.connect import get_env_files, load_config
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.client.connections.config import ENVIRONMENT, ConfigValue
from synth.console.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from synth.local.cluster.control import ClusterReport
    from synth.local.cluster.gpu_report import GpuReport
    from synth.local.cluster.state import ClusterState, StateFile
    from synth.local.cluster.supervisor import Supervisor


class EngineChoice(StrEnum):
    """The inference engines to choose from."""

    OWN = "transformers"
    VLLM = "vllm"


def up(
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The gateway's port, on loopback: the earlier one, at first 8000."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all is healthy.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that --detach waits for each next process.")] = 180,
    data: Data = DEFAULT_DATA,
    engine: Annotated[
        EngineChoice | None,
        typer.Option(
            envvar="SYNTH_ENGINE",
            help="The engine that serves models; vllm (`make install-vllm`) if it can use the GPU, else transformers.",
        ),
    ] = None,
    gpus_for_vllm: Annotated[
        int | None, typer.Option(min=1, help="GPUs for inference, a process each; half of them.")
    ] = None,
    gpus_for_training: Annotated[int | None, typer.Option(min=1, help="GPUs for training; the rest.")] = None,
    gpus_for_ref: Annotated[
        int | None, typer.Option(min=0, max=1, help="GPUs for a dedicated reference model; none.")
    ] = None,
    fmt: Output = Format.TABLE,
    service: Annotated[list[str] | None, typer.Option(help="Only these services; all by default.", hidden=True)] = None,
) -> None:
    """Start a cluster on this machine: the bus and every service, restarted when they die.

    The machine's GPUs decide which process uses which device: several are divided, one is shared by turns, and
    without one the CPU does all. Keys and the address go into the nearest .env (or the first --env-file), whose other
    lines stay; an address that an earlier `up` wrote there is updated.
    Without --detach it runs until Ctrl-C.
    """
    import os

    from synth.console.errors import UsageProblem
    from synth.events.catalogue import SERVICES
    from synth.local.cluster.control import inspect_cluster, prepare_cluster, start_detached
    from synth.local.cluster.gpu_report import planned_gpus
    from synth.local.cluster.state import StateFile
    from synth.local.cluster.vllm_env import find_vllm_python, vllm_python
    from synth.local.devices.options import read_device_options
    from synth.local.devices.plan import DevicePlan, plan_devices
    from synth.local.devices.probe import read_inventory

    if fmt is Format.JSON and not detach:
        raise UsageProblem("only --detach returns what JSON could be printed of", fix="add --detach", where="-o json")
    services = tuple(service or SERVICES)
    if unknown := sorted(set(services) - set(SERVICES)):
        raise UsageProblem(f"there is no service {unknown[0]!r}", expected=", ".join(SERVICES), where="--service")
    options = read_device_options(
        os.environ,
        engine=engine.value if engine is not None else "",
        gpus_for_vllm=gpus_for_vllm,
        gpus_for_training=gpus_for_training,
        gpus_for_ref=gpus_for_ref,
    )

    def plan() -> tuple[DevicePlan, str]:
        devices = plan_devices(read_inventory(find_vllm_python()), options)
        return devices, vllm_python() if devices.engine == "vllm" else ""

    home = data.resolve()
    file = StateFile(home)
    with file.locked():
        prepared = prepare_cluster(file, services, port=port, env_file=get_env_files(ctx)[0], plan=plan)
        for note in (*prepared.notes, *prepared.state.devices.notes):
            output.hint(note)
        if gpus := planned_gpus(prepared.state.devices):
            _print_gpus(gpus)
        if elsewhere := leads_elsewhere(prepared.state, load_config(ctx, may_be_new=True).backend):
            output.warn(elsewhere)
        if not detach:
            _foreground(file, home, services)
            return
    with output.status("starting") as show:
        start_detached(file, home, services, timeout=timeout, show=show)
    if fmt is Format.JSON:
        output.print_json(inspect_cluster(file))
        return
    output.message(f"the cluster is up: {prepared.state.url}")
    output.hint("look at it: synthctl status · end it: synthctl down")


def leads_elsewhere(state: ClusterState, address: ConfigValue) -> str:
    """Return a warning if the commands of this place reach another address than the cluster's; "" if they reach it."""
    if address.text in (f"{url}/api" for url in (state.url, state.url.replace("127.0.0.1", "localhost"))):
        return ""
    how = {"flag": "leave the flag out", ENVIRONMENT: f"unset {address.name}"}
    remedy = how.get(address.origin, f"remove its line from {address.origin}")
    return (
        f"{address.label} is {address.text} and wins: commands here go there, not to this cluster at {state.url}/api; "
        f"to use this cluster, {remedy}"
    )


def _foreground(file: StateFile, data: Path, services: tuple[str, ...]) -> None:
    import asyncio

    from synth.local.cluster.plan import make_plan
    from synth.local.cluster.supervisor import Supervisor

    state = file.read()
    assert state is not None
    supervisor = Supervisor(make_plan(state, data, services), state, file, output.message)
    if not output.is_terminal():
        asyncio.run(supervisor.run())
        return
    from rich.live import Live

    # Nothing scrolls but what happens: reports appear above the table.
    with Live(
        get_renderable=lambda: _live_table(supervisor), console=output.err(), refresh_per_second=4, transient=True
    ):
        asyncio.run(supervisor.run())
    output.message("the cluster is down; its data stays in " + str(data))


def _live_table(supervisor: Supervisor) -> RenderableType:
    import time

    from rich.console import Group
    from rich.text import Text

    rows: list[list[str]] = []
    for s in supervisor.supervised:
        uptime = output.duration(time.time() - s.state.started) if s.state.started else "-"
        health = "failing" if s.failing else s.health
        rows.append([s.spec.name, health, str(s.spec.port), str(s.state.pid or "-"), str(s.state.restarts), uptime])
    columns = ("service", "health", "port", "pid", "restarts", "up")
    if supervisor.stop.is_set():
        foot = Text("draining; Ctrl-C again ends it at once", style="yellow")
    elif supervisor.all_healthy.is_set():
        foot = Text(f"{supervisor.state.url} · Ctrl-C ends the cluster", style="dim")
    else:
        foot = Text("starting", style="dim")
    return Group(output.table(columns, rows), foot)


def down(data: Data = DEFAULT_DATA) -> None:
    """End the cluster that runs here; its data stays. Does nothing when none runs."""
    from synth.local.cluster.control import stop_cluster
    from synth.local.cluster.state import StateFile

    with output.status("draining"):
        ran = stop_cluster(StateFile(data.resolve()))
    output.message("the cluster is down" if ran else "no cluster is running here")


def status(ctx: typer.Context, data: Data = DEFAULT_DATA, fmt: Output = Format.TABLE) -> None:
    """Show every process of the cluster that runs here. Exit 0 only when all are healthy, 7 when none runs."""
    from synth.local.cluster.control import inspect_cluster
    from synth.local.cluster.state import StateFile

    report = inspect_cluster(StateFile(data.resolve()))
    if fmt is Format.JSON:
        output.print_json(report)
    else:
        _print_report(report)
        files = [str(file) for file in get_env_files(ctx) if file.is_file()]
        output.hint(f"keys and address: {', '.join(files) or 'no .env here or in a folder above'}")
    if report.state == "down":
        raise typer.Exit(ExitCode.UNREACHABLE)
    if report.state != "healthy":
        raise typer.Exit(ExitCode.ERROR)


def _print_report(report: ClusterReport) -> None:
    rows = [
        [
            p.name,
            p.health,
            str(p.port),
            str(p.pid or "-"),
            str(p.restarts),
            "-" if p.uptime_s is None else output.duration(p.uptime_s),
            p.problem or "-",
        ]
        for p in report.processes
    ]
    if report.state == "down":
        output.message("no cluster is running here")
        output.hint("start one: synthctl up")
        _print_gpus(report.gpus, report.gpu_problem)
        return
    output.print_table(("service", "health", "port", "pid", "restarts", "up", "problem"), rows, wrap="problem")
    _print_gpus(report.gpus, report.gpu_problem)
    if report.device:
        output.hint(report.device)
    if report.state == "orphaned":
        output.warn("the supervisor is gone and restarts nothing: `synthctl up` restarts it, `synthctl down` ends all")
    else:
        output.hint(f"{report.url} · supervisor pid {report.supervisor_pid}")


def _print_gpus(gpus: list[GpuReport], problem: str = "") -> None:
    """Print each GPU in lines of its own: a table would cut text on a narrow terminal."""
    if problem:
        output.warn(problem)
    for gpu in gpus:
        output.message(f"GPU {gpu.id}  {gpu.name}  {gpu.memory}  {gpu.holder}")

"""`synthctl deploy`: a task app to where it stays."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data
from synth.cli.connect import Backend, EnvFiles, get_env_files, load_config, override_options
from synth.cli.tui import output
from synth.cli.tui.groups import RunByDefault
from synth.cli.tui.output import Format, Output

AppId = Annotated[str, typer.Argument(metavar="ID", help="The app's id.", show_default=False)]


class Target(StrEnum):
    """Where an app is deployed to."""

    PROCESS = "process"


def run(
    ctx: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP", help="An id, a file (app.py) or module (pkg.app); :NAME picks one.", show_default=False
        ),
    ],
    to: Annotated[Target, typer.Option("--to", help="Where to: a process of this machine.")] = Target.PROCESS,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="The port; without it the one that it had, the first time a free one.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            metavar="N",
            min=0,
            help="Crashes in a row after which it is given up; half a minute of health ends a row.",
        ),
    ] = 5,
    start_timeout: Annotated[
        float, typer.Option("--start-timeout", metavar="S", min=0.1, help="Seconds until it must be healthy.")
    ] = 60.0,
    backend: Backend = None,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Deploy a task app made with the SDK: it is served after this command, and this terminal, have ended.

    It gets this environment and what the env files say; an ENVIRONMENT_API_KEY is made and given to the backend as by
    `serve`. A process that dies is started again. Deployed anew, the new one takes the port over when it is healthy,
    and only then the old one ends; one that does not come up changes nothing. `run` may be left out.
    """
    from synth.cli.deployments import control
    from synth.cli.deployments.state import Deployment
    from synth.cli.task_apps.loading import load_task_app, locate, set_environment, store_key

    override_options(ctx, backend=backend, env_files=env_file)
    settings = load_config(ctx, may_be_new=True)
    for note in set_environment(get_env_files(ctx)):
        output.hint(note)
    place = locate(app)
    # What would not start is told here, with its place, and not by a log.
    loaded = load_task_app(place)
    loaded.asgi()
    files = Deployment(data.resolve(), loaded.id)
    with output.status("starting") as show:
        state = control.deploy(
            files, place, host=host, port=port, max_restarts=max_restarts, start_s=start_timeout, show=show
        )
    if note := store_key(settings):
        output.hint(note)
    if fmt is Format.JSON:
        output.print_json(_as_data(files, state))
        return
    output.print_line(state.url)
    output.hint(
        f"{files.id} is served; its log: synthctl deploy logs {files.id} · end it: synthctl deploy stop {files.id}"
    )


def ls(data: Data = DEFAULT_DATA, fmt: Output = Format.TABLE) -> None:
    """List the deployed task apps. Exit 1 where one is not well."""
    import time

    from synth.cli.deployments.state import find_deployments
    from synth.cli.errors import ExitCode

    found = find_deployments(data.resolve())
    if fmt is Format.JSON:
        output.print_json([_as_data(files, state) for files, state in found])
    elif not found:
        output.message("no task app is deployed here")
    else:
        rows = [
            [
                state.id,
                state.seen(),
                state.url or "-",
                str(state.pid) if state.running else "-",
                str(state.restarts),
                output.duration(time.time() - state.started) if state.running and state.started else "-",
                state.problem or state.refused or "-",
            ]
            for _, state in found
        ]
        output.print_table(("app", "health", "url", "pid", "restarts", "up", "problem"), rows, wrap="problem")
    for _, state in found:
        if state.seen() == "orphaned":
            output.warn(f"the supervisor of {state.id} was killed: deploy it again, or end it: synthctl deploy stop")
    if any(state.seen() not in ("healthy", "stopped") for _, state in found):
        raise typer.Exit(ExitCode.ERROR)


def logs(
    id: AppId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last lines.")] = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show what a deployed task app wrote since its supervisor was started, and what became of its processes."""
    import time

    from synth.cli.deployments.state import find_deployment

    files, _ = find_deployment(data.resolve(), id)
    with files.log.open(encoding="utf-8", errors="replace") as log:
        lines = log.read().splitlines()
        for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
            output.print_line(line)
        try:
            while follow:
                if line := log.readline():
                    output.print_line(line.removesuffix("\n"))
                else:
                    time.sleep(0.2)
        except KeyboardInterrupt:
            raise typer.Exit from None


def stop(id: AppId, data: Data = DEFAULT_DATA) -> None:
    """End a deployed task app; what it plays may finish first. Its port and its log stay known."""
    from synth.cli.deployments import control
    from synth.cli.deployments.state import find_deployment

    files, state = find_deployment(data.resolve(), id)
    with output.status(f"ending {id}"):
        ran = control.stop(files, state)
    output.message(f"{id} is stopped" if ran else f"{id} was not running")


def _as_data(files: object, state: object) -> dict[str, object]:
    from synth.cli.deployments.state import Deployment, DeploymentState

    assert isinstance(files, Deployment)
    assert isinstance(state, DeploymentState)
    return {
        "id": state.id,
        "health": state.seen(),
        "url": state.url,
        "pid": state.pid if state.running else None,
        "supervisor_pid": state.supervisor_pid if state.supervised else None,
        "restarts": state.restarts,
        "problem": state.problem or state.refused or None,
        "app": state.app,
        "folder": state.folder,
        "log": str(files.log),
    }


app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Task apps that stay: run, ls, logs, stop. `synthctl deploy APP` deploys one.",
)
for name, command in (("run", run), ("ls", ls), ("logs", logs), ("stop", stop)):
    app.command(name)(command)

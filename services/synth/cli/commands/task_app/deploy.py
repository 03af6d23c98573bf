"""`synthctl deploy`: deploys a task app, so that it outlives the command."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data
from synth.cli.connect import (
    Backend,
    EnvFiles,
    flags_of_command_line,
    get_env_files,
    load_config,
    override_options,
)
from synth.cli.tui import output
from synth.cli.tui.groups import RunByDefault
from synth.cli.tui.output import Format, Output
from synth.runtime.lines import split_lines

if TYPE_CHECKING:
    from synth.local.deployments.image import ImageFolder

AppId = Annotated[str, typer.Argument(metavar="ID", help="The app's id.")]


class Target(StrEnum):
    """The target of a deployment."""

    PROCESS = "process"
    DOCKER = "docker"
    MODAL = "modal"


#: The options that only some targets have, with those targets.
_TARGETS_OF = {
    **dict.fromkeys(("port", "host", "max_restarts"), (Target.PROCESS,)),
    "start_timeout": (Target.PROCESS, Target.MODAL),
    **dict.fromkeys(("tag", "base", "requirements", "include"), (Target.DOCKER, Target.MODAL)),
    "max_inputs": (Target.MODAL,),
}


def run(
    ctx: typer.Context,
    app: Annotated[
        str, typer.Argument(metavar="APP", help="An id, a file (app.py) or module (pkg.app); :NAME picks one.")
    ],
    to: Annotated[
        Target, typer.Option(help="A process of this machine, a container image, or Modal.")
    ] = Target.PROCESS,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="The port; without it the one that it had, the first time a free one.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    max_restarts: Annotated[
        int,
        typer.Option(min=0, help="Crashes in a row after which it is given up; half a minute of health ends a row."),
    ] = 5,
    start_timeout: Annotated[
        float,
        typer.Option(metavar="S", min=0.1, help="Seconds until it must be healthy; modal: of a container's start."),
    ] = 60.0,
    tag: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="docker, modal: the name of the image, or of the app at Modal; by default from the app's id.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="docker, modal: the image to begin with; Python's or Modal's own if none."),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="docker, modal: the app's requirements, as pip reads them; else what its modules import.",
        ),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="docker, modal: a file or folder that the app reads; repeatable."),
    ] = None,
    max_inputs: Annotated[
        int, typer.Option(min=1, help="modal: calls that one container answers at once; then another.")
    ] = 32,
    backend: Backend = None,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Deploy a task app made with the SDK: it is served after this command, and this terminal, have ended.

    It gets this environment and the settings of the env files; an ENVIRONMENT_API_KEY is made and given to the backend
    as by `serve`. A process that dies is started again. In a second deployment the new process takes the port over
    when it is healthy, and only then the old one ends; one that does not become healthy changes nothing. `run` may be
    left out.

    `--to docker` writes a folder with a Dockerfile, the app's modules and their requirements, and no key; if docker or
    podman answers, the image is built. The environment key is given when the container runs.

    `--to modal` needs the package modal and a token of Modal's. Modal builds the image and serves the app; the settings
    of the env files, SYNTH_ and MODAL_ ones aside, and the environment key are given to it as a secret. Modal answers a
    call that takes longer than 150 s with a redirect, which no job follows: its rollouts must be shorter.
    """
    override_options(ctx, backend=backend, env_files=env_file)
    _refuse_what_is_not_for(ctx, to)
    if to is Target.DOCKER:
        _to_docker(ctx, app, tag=tag, base=base, requirements=requirements, include=include or [], data=data, fmt=fmt)
        return
    from synth.cli.confirmation import remember
    from synth.cli.task_apps.environment import set_environment, store_key
    from synth.local.deployments import control
    from synth.local.deployments.state import Deployment
    from synth.local.task_apps.loading import load_task_app, locate
    from synth.runtime.environment.env_file import read_env_file

    settings = load_config(ctx, may_be_new=True)
    for note in set_environment(get_env_files(ctx)):
        output.hint(note)
    place = locate(app)
    # An app that cannot start is reported here, with its place, instead of in the log.
    loaded = load_task_app(place)
    loaded.asgi()
    files = Deployment(data.resolve(), loaded.id)
    with output.status("starting") as show:
        if to is Target.MODAL:
            from synth.local.deployments import image, modal_app

            modal_app.load_sdk()
            folder = files.folder / "modal"
            written = image.write_folder(folder, place, include=include or [], requirements=requirements)
            named = [name for file in get_env_files(ctx) for name in read_env_file(file)]
            secrets = modal_app.choose_secrets(named, os.environ)
            output.hint(_contents("at Modal", written) + f"\nas a secret: {', '.join(secrets)}")
            state = modal_app.deploy(
                files,
                written,
                name=tag or _default_tag(loaded.id),
                base=base,
                secrets=secrets,
                start_s=start_timeout,
                max_inputs=max_inputs,
                show=show,
            )
        else:
            state = control.deploy(
                files, place, host=host, port=port, max_restarts=max_restarts, start_s=start_timeout, show=show
            )
    if state.modal is not None:
        # The user's own deployment, which was given this very key.
        remember("ENVIRONMENT_API_KEY", state.url)
    if note := store_key(settings, state.url):
        output.hint(note)
    if fmt is Format.JSON:
        output.print_json(_as_data(files, state))
        return
    output.print_line(state.url)
    log = f"modal app logs {state.modal.name}" if state.modal else f"synthctl deploy logs {files.id}"
    output.hint(f"{files.id} is served; its log: {log} · end it: synthctl deploy stop {files.id}")


def _refuse_what_is_not_for(ctx: typer.Context, to: Target) -> None:
    """Refuse options of another target. Raises `UsageProblem`."""
    from synth.console.errors import UsageProblem

    for name, targets in _TARGETS_OF.items():
        for flag in flags_of_command_line(ctx, [name]) if to not in targets else ():
            expected = f"it with --to {' or '.join(targets)}"
            raise UsageProblem(f"{flag} has no meaning for --to {to}", expected=expected, where=flag)


def _default_tag(id: str) -> str:
    return "task-app-" + (re.sub(r"[^a-z0-9]+", "-", id.lower()).strip("-") or "one")


def _contents(where: str, written: ImageFolder) -> str:
    return f"{where}: {', '.join(written.files)}\nasked of pip: {', '.join(written.requirements) or 'nothing'}"


def _to_docker(
    ctx: typer.Context,
    app: str,
    *,
    tag: str | None,
    base: str | None,
    requirements: Path | None,
    include: list[Path],
    data: Path,
    fmt: Format,
) -> None:
    import shlex
    import sys

    from synth.cli.task_apps.environment import read_environment
    from synth.local.deployments import image
    from synth.local.deployments.state import Deployment
    from synth.local.task_apps.loading import load_task_app, locate

    read_environment(get_env_files(ctx))
    place = locate(app)
    loaded = load_task_app(place)
    loaded.asgi()
    folder = Deployment(data.resolve(), loaded.id).folder / "image"
    base = base or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    written = image.write_image(folder, place, include=include, requirements=requirements, base=base)
    tag = tag or _default_tag(loaded.id)
    output.hint(_contents("in the image", written))
    engine = image.find_engine()
    if engine is not None:
        image.build(engine, folder, tag)
    if fmt is Format.JSON:
        output.print_json({"id": loaded.id, "folder": str(folder), "tag": tag, "built": engine is not None})
    else:
        output.print_line(str(folder))
    name = engine.rpartition("/")[2] if engine else "docker"
    if engine is None:
        command = shlex.join([name, "build", "--tag", tag, str(folder)])
        output.warn(f"no container engine answers here ({', '.join(image.ENGINES)}); on a machine with one: {command}")
    output.hint(f"run it: {name} run --detach --publish 8001:8001 --env ENVIRONMENT_API_KEY {tag}")


def ls(data: Data = DEFAULT_DATA, fmt: Output = Format.TABLE) -> None:
    """List the deployed task apps. Exit 1 if one is not well."""
    import time

    from synth.console.errors import ExitCode
    from synth.local.deployments.state import find_deployments

    deployments = find_deployments(data.resolve())
    if fmt is Format.JSON:
        output.print_json([_as_data(files, state) for files, state in deployments])
    elif not deployments:
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
            for _, state in deployments
        ]
        output.print_table(("app", "health", "url", "pid", "restarts", "up", "problem"), rows, wrap="problem")
    for _, state in deployments:
        if state.seen() == "orphaned":
            output.warn(f"the supervisor of {state.id} was killed: deploy it again, or end it: synthctl deploy stop")
    if any(state.seen() not in ("healthy", "deployed", "stopped") for _, state in deployments):
        raise typer.Exit(ExitCode.ERROR)


def logs(
    id: AppId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines.")] = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show the output of a deployed task app since its supervisor was started, and how its processes ended."""
    import time

    from synth.console.errors import UsageProblem
    from synth.local.deployments.state import find_deployment

    files, state = find_deployment(data.resolve(), id)
    if state.modal is not None:
        raise UsageProblem(f"the log of {id} is at Modal", fix=f"modal app logs {state.modal.name}", where=id)
    with files.log.open(encoding="utf-8", errors="replace") as log:
        lines = split_lines(log.read())
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


def stop(ctx: typer.Context, id: AppId, env_file: EnvFiles = None, data: Data = DEFAULT_DATA) -> None:
    """End a deployed task app. A process finishes its rollouts first; the app's port and log are kept."""
    from synth.cli.task_apps.environment import read_environment
    from synth.local.deployments import control, modal_app
    from synth.local.deployments.state import find_deployment

    override_options(ctx, backend=None, env_files=env_file)
    files, state = find_deployment(data.resolve(), id)
    with output.status(f"ending {id}"):
        if state.modal is not None:
            # Modal's token may be in an env file, as it may have been for the deployment.
            read_environment(get_env_files(ctx))
            ran = modal_app.stop(files, state)
        else:
            ran = control.stop(files, state)
    output.message(f"{id} is stopped" if ran else f"{id} was not running")


def _as_data(files: object, state: object) -> dict[str, object]:
    from synth.local.deployments.state import Deployment, DeploymentState

    assert isinstance(files, Deployment)
    assert isinstance(state, DeploymentState)
    return {
        "id": state.id,
        "modal": state.modal.name if state.modal else None,
        "health": state.seen(),
        "url": state.url,
        "pid": state.pid if state.running else None,
        "supervisor_pid": state.supervisor_pid if state.supervised else None,
        "restarts": state.restarts,
        "problem": state.problem or state.refused or None,
        "app": state.app,
        "folder": state.folder,
        "log": None if state.modal else str(files.log),
    }


app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Task apps that stay: run, ls, logs, stop. `synthctl deploy APP` deploys one.",
)
for name, command in (("run", run), ("ls", ls), ("logs", logs), ("stop", stop)):
    app.command(name)(command)

"""Serves a task app of the user's code while a command waits for a job on it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import typer

from synth.cli.connect import get_env_files, load_config
from synth.cli.task_apps.environment import set_environment
from synth.cli.tui import output as messages
from synth.console.errors import UsageProblem
from synth.local.deployments.temporary import serving
from synth.local.task_apps.loading import load_task_app, locate


def serve_for_job(ctx: typer.Context, app: str, *, flag: str, data: Path, waits: bool) -> tuple[str, str]:
    """Serve an app until the command ends, for the cluster of this machine; returns its id and its address.

    app: as `locate` takes it. flag: the one that names it. waits: whether the command waits for the job. Raises
    `UsageProblem` if it does not wait, and for a cluster on another machine.
    """
    fix = f"have it stay, and name its address with --task-url: synthctl deploy {app}"
    if not waits:
        what = f"the app of {flag} is served while this command waits for the job, but --detach does not wait"
        raise UsageProblem(what, fix=fix, where="--detach")
    backend = load_config(ctx, may_be_new=True)
    if not backend.is_on_this_machine:
        what = f"the app of {flag} is served on loopback, which the cluster at {backend.backend.text} cannot reach"
        raise UsageProblem(what, fix=fix, where=flag)
    place = locate(app)
    for note in set_environment(get_env_files(ctx)):
        messages.hint(note)
    # An app that cannot start is reported here, with its place, instead of in the log.
    loaded = load_task_app(place)
    loaded.asgi()
    log = data.resolve() / "deployments" / f"{quote(loaded.id, safe='')}.job.log"
    with messages.status("starting") as show:
        url = ctx.with_resource(serving(place, log=log, show=show))
    messages.hint(f"{loaded.id} is served at {url} until the job has ended; its log: {log}")
    return loaded.id, url

"""A task app that is served while a command runs, in its own process, whose output goes to a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import typer

from synth.cli.api.task_app import TaskAppConnection, TaskAppError
from synth.cli.config import ConfigValue
from synth.cli.connect import get_env_files, load_config
from synth.cli.errors import CliError, UsageProblem
from synth.cli.task_apps.loading import load_task_app, locate, set_environment
from synth.cli.tui import output as messages
from synth.local.deployments.worker import UNTIL_STDIN_ENDS
from synth.local.processes.running import end_group
from synth.runtime.lines import split_lines
from synth.taskapp.server import GRACE_S, listen, url_of

_WORKER = (sys.executable, "-P", "-m", "synth.local.deployments.worker")
_LOOK_S = 1.0
_TAIL_LINES = 15


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


@contextmanager
def serving(place: str, *, log: Path, show: Callable[[str], None]) -> Iterator[str]:
    """Serve the app at an address of this machine while the block runs. place: as `locate` returns it.

    Raises `CliError` with the end of its log if it ends before it answers.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    listener = listen("127.0.0.1", 0)
    url = url_of(listener)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_WORKER, UNTIL_STDIN_ENDS, place, str(listener.fileno())],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Nothing is written to it: it ends with this process, however that ends.
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    # Close our copy of the socket, so that calls to a dead app fail at once instead of waiting.
    listener.close()
    try:
        show("waiting for the task app")
        _wait(process, url, log)
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S + 4.0)
        end_group(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    with TaskAppConnection(ConfigValue(url, "this command"), None) as app:
        while True:
            try:
                app.reply("GET", "/", timeout=_LOOK_S)
                return
            except TaskAppError:
                if process.poll() is not None:
                    lines = "\n    ".join(split_lines(log.read_text(errors="replace"))[-_TAIL_LINES:]) or "(nothing)"
                    what = f"the task app ended with code {process.returncode} before it answered"
                    raise CliError(what, fix=f"its log ends with:\n    {lines}", where=str(log)) from None

"""`synthctl serve`: a task app of the user's, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.connect import Backend, EnvFiles, get_env_files, load_config, override_options
from synth.cli.tui import output

if TYPE_CHECKING:
    from synth.taskapp.sdk import TaskApp


def serve(
    ctx: typer.Context,
    app: Annotated[
        str, typer.Argument(metavar="APP", help="An id, a file (app.py) or module (pkg.app); :NAME picks one.")
    ],
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 takes a free one.")] = 8001,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    reload: Annotated[bool, typer.Option("--reload", help="Restart when the app's Python files change.")] = False,
    backend: Backend = None,
    env_file: EnvFiles = None,
) -> None:
    """Serve a task app made with the SDK until Ctrl-C; prints its address.

    An id is looked for in the Python files of this folder and below (`synthctl apps ls` lists them).

    It gets the settings of the env files. Without an ENVIRONMENT_API_KEY one is made and written to the first file;
    the backend, when it answers, is given the key.

    With `--reload` the port stays, rollouts under way end with an error that a job plays again, and a file that does
    not import is shown: calls wait for the save that mends it.
    """
    from synth.cli.task_apps.environment import set_environment, store_key
    from synth.local.task_apps.loading import load_task_app
    from synth.taskapp.sdk import serve as run

    override_options(ctx, backend=backend, env_files=env_file)
    settings = load_config(ctx, may_be_new=True)
    for note in set_environment(get_env_files(ctx)):
        output.hint(note)

    def ready(task_app: TaskApp, url: str) -> None:
        output.print_line(url)
        if note := store_key(settings, url):
            output.hint(note)
        output.hint(f"{task_app.id} is served; Ctrl-C ends it\ncheck it: synthctl doctor --task-url {url}")

    if reload:
        from synth.cli.commands.task_app.reload import serve_and_reload

        serve_and_reload(app, host=host, port=port, ready=ready, dead=lambda: output.hint("waiting for the next save"))
        return
    task_app = load_task_app(app)
    run(task_app, port=port, host=host, ready=lambda url: ready(task_app, url))

"""`synthctl apps ls`: the task apps of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

app = typer.Typer(help="Task apps in a folder: ls.", no_args_is_help=True)


@app.callback()
def _apps() -> None:
    """Task apps in a folder: ls."""


@app.command("ls")
def ls(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, and below.")] = Path(),
    fmt: Output = Format.TABLE,
) -> None:
    """List the task apps in a folder's Python files, which are read and not run.

    Shown are apps of our SDK, of the synth-ai SDK and of Modal. `serve`, `play`, `deploy` and `eval --app-id` take the
    id of ours. Exit 1 where two apps have one id, or a file cannot be parsed.
    """
    from collections import Counter

    from synth.console.errors import ExitCode
    from synth.local.task_apps.discovery import find_apps

    listing = find_apps(folder)
    counts = Counter((app.id, app.kind) for app in listing.apps if app.id)
    twice = [named for named, count in counts.items() if count > 1]
    if fmt is Format.JSON:
        apps = [
            {
                "id": app.id or None,
                "kind": app.kind,
                "file": str(app.file),
                "line": app.line,
                "variable": app.variable or None,
                "aliases": list(app.aliases),
            }
            for app in listing.apps
        ]
        output.print_json({"apps": apps, "unread": listing.unread})
    elif listing.apps:
        rows = [(app.id or "-", app.kind, app.place, app.variable or "-") for app in listing.apps]
        output.print_table(("app", "kind", "place", "variable"), rows, wrap="place")
    else:
        output.message(f"no task app is in {folder.resolve()}")
    for line in listing.unread:
        output.warn(line)
    for named in twice:
        places = ", ".join(app.place for app in listing.apps if (app.id, app.kind) == named)
        output.warn(f"{counts[named]} task apps have the id {named[0]!r}: {places}; name the file of one to serve it")
    for app in listing.apps:
        if not app.id:
            output.warn(f"{app.place}: the app's id is computed: name its file to serve it")
    if twice or listing.unread:
        raise typer.Exit(ExitCode.ERROR)

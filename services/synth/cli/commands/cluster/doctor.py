"""`synthctl doctor`: what this machine and its configuration lack, each with what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data, TaskUrl
from synth.cli.connect import TrustApp, get_env_files, load_config
from synth.cli.errors import ExitCode
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output


def doctor(
    ctx: typer.Context,
    task_url: TaskUrl = None,
    trust_app: TrustApp = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="A port that `up` is to take; else the one that it had.")
    ] = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Check this machine, the keys, the backend and the task app. Exit 1 when a check fails."""
    from synth.cli.checks import run_checks
    from synth.cli.submission import confirm_app, task_app_address

    settings = load_config(ctx)
    url = task_app_address(task_url, settings)
    if trust_app and url is not None:
        confirm_app(settings, url, trusted=True)
    with output.status("checking"):
        files = get_env_files(ctx)
        results = run_checks(settings, data=data.resolve(), port=port, task_url=url, env_files=files)
    if fmt is Format.JSON:
        output.print_json(results)
    else:
        rows = [(f.check, f.result, f.found, f.fix if f.result != "ok" else "") for f in results]
        output.print_findings(rows)
    if any(f.result == "fail" for f in results):
        raise typer.Exit(ExitCode.ERROR)

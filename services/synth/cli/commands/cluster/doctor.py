"""`synthctl doctor`: what this machine and its configuration lack, each with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data, TaskUrl
from synth.cli.connect import TrustApp, get_env_files, load_config
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from synth.cli.hardening.findings import Finding

_COMPOSE = Path("docker-compose.yml")


def doctor(
    ctx: typer.Context,
    task_url: TaskUrl = None,
    trust_app: TrustApp = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="A port that `up` is to take; else the one that it had.")
    ] = None,
    data: Data = DEFAULT_DATA,
    security: Annotated[
        bool, typer.Option("--security", help="Check a deployment against the hardening list of docs/security.md.")
    ] = False,
    compose: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --security: the Compose file; else docker-compose.yml, if it is here."),
    ] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Check this machine, the keys, the backend and the task app. Exit 1 when a check fails."""
    if compose is not None and not security:
        raise UsageProblem("a Compose file is checked with --security alone", fix="add --security", where="--compose")
    if security:
        return _security(ctx, data, compose or (_COMPOSE if _COMPOSE.is_file() else None), fmt)
    from synth.cli.doctor import run_checks
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
    return None


def _security(ctx: typer.Context, data: Path, compose: Path | None, fmt: Format) -> None:
    from synth.cli.hardening.checks import check_security

    config = load_config(ctx)
    with output.status("checking"):
        findings = check_security(config, data=data.resolve(), compose=compose, env_files=get_env_files(ctx))
    if fmt is Format.JSON:
        output.print_json(findings)
    else:
        _print_security(findings)
    if any(f.result == "failed" for f in findings):
        raise typer.Exit(ExitCode.ERROR)


def _print_security(findings: list[Finding]) -> None:
    """Print the findings. On a terminal, checks that are ok share one list of names, so that the problems stand out."""
    if not output.is_terminal():
        rows = [(f.check, f.result, f.found, f.where, f.fix) for f in findings]
        return output.print_table(("check", "result", "found", "where", "fix"), rows)
    well = dict.fromkeys(f.check for f in findings if f.result == "ok")
    rows = [(f.result, f.check, f.found, f.where, f.fix) for f in findings if f.result != "ok"]
    output.print_reports([*rows, ("ok", ", ".join(well), "", "", "")])
    counts = {name: sum(f.result == name for f in findings) for name in ("failed", "warning", "not checked", "ok")}
    return output.hint(" · ".join(f"{count} {name}" for name, count in counts.items()))

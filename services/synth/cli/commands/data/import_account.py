"""`synthctl import openai`: fine-tuning jobs and their files, from an OpenAI account to this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.client.connections.config import ENVIRONMENT, ConfigValue
from synth.console.errors import CliError, NotAuthorised

if TYPE_CHECKING:
    from synth.cli.openai_account.account import AccountSource

app = typer.Typer(no_args_is_help=True, help="Take jobs and files over from another service.")

_OPENAI = "https://api.openai.com/v1"


@app.callback()
def _group() -> None:
    """A group, also while it has one command."""


@app.command("openai")
def openai(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder that is written, and continued.")] = Path(
        "openai"
    ),
    export: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Exported files, instead of the account.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="ID", help="The base of each job file; without it one is proposed.")
    ] = None,
    base_url: Annotated[str, typer.Option(metavar="URL", help="The API of the account.")] = _OPENAI,
    trust_model_url: Annotated[
        bool, typer.Option("--trust-model-url", help="Confirm that OPENAI_API_KEY may be sent to --base-url.")
    ] = False,
    patience: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds for which a busy API is called again.")
    ] = 300.0,
    fmt: Output = Format.TABLE,
) -> None:
    """Download every fine-tuning job with its files, checkpoints and evals, and write a job file for each job.

    OPENAI_API_KEY is sent to OpenAI alone, from this machine. A second run continues: files that are here whole are not
    downloaded again, and job files that exist are left as they are. The paths in the job files hold in this folder.
    """
    from synth.cli.openai_account.folder import ImportFolder
    from synth.cli.openai_account.importing import import_account

    account = _account(export, base_url, trusted=trust_model_url, patience_s=patience)
    available = _bases_of_cluster(ctx)
    folder = ImportFolder(out)
    with output.status("reading the account") as progress:
        report = import_account(account, folder, base=base, available=available, progress=progress)
    if fmt is Format.JSON:
        return output.print_json(report)
    rows = [
        [job.id, job.method, job.model, job.status, output.count(job.rows), job.base, job.file or job.problem]
        for job in report.jobs
    ]
    output.print_table(("job", "method", "model", "status", "rows", "base", "job file"), rows, wrap="job file")
    for line in report.missing:
        output.warn(line)
    files = f"{report.downloaded} files downloaded, {report.kept} were here"
    output.message(f"{len(report.jobs)} jobs, {report.evaluations} evals; {files}")
    if available is None:
        output.message("no cluster was reached: bases are proposed from the known ones")
    if kept := sum(job.kept for job in report.jobs):
        fix = "; remove one to have it written with --base" if base else ""
        output.warn(f"{kept} job files existed and are unchanged{fix}")
    if ready := next((job.file for job in report.jobs if job.file), None):
        output.hint(f"train one here: synthctl submit {ready}")
    return None


def _account(export: Path | None, base_url: str, *, trusted: bool, patience_s: float) -> AccountSource:
    """Return the account, or its export. Raises `NotAuthorised` without a key, and `UnconfirmedOrigin`."""
    from synth.cli.confirmation import confirm, remember
    from synth.cli.openai_account.account import ExportedAccount, HostedAccount

    if export is not None:
        return ExportedAccount(export)
    text = os.environ.get("OPENAI_API_KEY")
    if not text:
        raise NotAuthorised(
            "no OpenAI key",
            expected="OPENAI_API_KEY in the environment, with read access to Fine-tuning, Files and Evals",
            fix="set it, or read exported files with --from DIR",
        )
    key = ConfigValue(text, ENVIRONMENT, "OPENAI_API_KEY")
    address = ConfigValue(base_url, "flag", "--base-url")
    if trusted:
        remember("OPENAI_API_KEY", base_url)
    else:
        confirm(key, address)
    return HostedAccount(address, key, patience_s=patience_s)


def _bases_of_cluster(ctx: typer.Context) -> list[str] | None:
    """Return the bases that the cluster can train; None if there is no cluster, or it does not answer."""
    try:
        with open_client(ctx) as client:
            return [model.id for model in client.models.list() if model.kind == "base"]
    except CliError:
        return None

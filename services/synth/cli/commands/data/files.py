"""`synthctl files …`: datasets on the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_files
from synth.cli.tui.output import Cell, Format, Output, Yes

_DATASET = "JSONL or Parquet of conversations or pairs, or a folder of Hugging Face's datasets."

app = typer.Typer(help="Datasets: upload, ls, get, rm.", no_args_is_help=True)


@app.command("upload")
def upload(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help=_DATASET)],
    timeout: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds to wait for the check.")] = 600.0,
    drop: Annotated[str, typer.Option(metavar="NAME,…", help="Columns to leave out of each row.")] = "",
    fmt: Output = Format.TABLE,
) -> None:
    """Upload a dataset and wait until it is checked; prints its id. Exit 2, with the lines, when it is wrong."""
    from synth.cli.transfer.upload import upload_ready

    with open_client(ctx) as client:
        file = upload_ready(client, path, timeout=timeout, drop=[name for name in drop.split(",") if name])
    if fmt is Format.JSON:
        output.print_json(file)
    else:
        output.print_line(file.id)


@app.command("ls")
def ls(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    fmt: Output = Format.TABLE,
) -> None:
    """List files, newest first."""
    with open_client(ctx) as client:
        files = [*client.files.list(limit=limit)]
    if fmt is Format.JSON:
        return output.print_json(files)
    rows = [
        [
            f.id,
            f.filename,
            f.status,
            output.count(f.rows),
            _about(f.tokens),
            output.size(f.bytes),
            output.age(f.created_at),
        ]
        for f in files
    ]
    output.print_table(("id", "name", "status", "rows", "tokens", "size", "age"), rows, wrap="name")
    if not files:
        output.hint("no files yet: synthctl files upload FILE")
    return None


@app.command("get")
def get(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file's id.", autocompletion=complete_files)],
    fmt: Output = Format.TABLE,
) -> None:
    """Show one file and its problems."""
    from synth.client.files import line_problems

    with open_client(ctx) as client:
        row = client.files.get(file)
    if fmt is Format.JSON:
        return output.print_json(row)
    pairs = [
        ("id", row.id),
        ("name", row.filename),
        ("status", row.status),
        ("purpose", row.purpose),
        ("size", output.size(row.bytes)),
        ("rows", output.count(row.rows) if row.rows else ""),
        ("messages", output.count(row.messages) if row.messages else ""),
        ("tokens", _about(row.tokens) if row.tokens else ""),
        ("lengths", _lengths(row.lengths)),
        ("images", output.count(row.images) if row.images else ""),
        ("pairs", output.count(row.pairs) if row.pairs else ""),
        ("prompts", output.count(row.prompts) if row.prompts else ""),
        ("converted", ", ".join(f"{output.count(n)} {shape}" for shape, n in row.converted.items())),
        ("annotations", ", ".join(f"{name} ({output.count(n)})" for name, n in row.annotations.items())),
        ("sha256", row.sha256),
        ("age", output.age(row.created_at)),
    ]
    output.print_pairs([(label, text) for label, text in pairs if text])
    if row.status == "failed":
        output.show_problems(line_problems(row.problems, row.bad_lines, row.filename), label="problem")
    return None


@app.command("rm")
def rm(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="The files' ids.", autocompletion=complete_files)],
    yes: Yes = False,
    fmt: Output = Format.TABLE,
) -> None:
    """Delete files; prints their ids. Jobs that were verified with them keep their own copies.

    A file that a job has used is deleted after a confirmation only.
    """

    with open_client(ctx) as client:
        for file in files if not yes else []:
            if jobs := client.files.jobs(file):
                others = "" if len(jobs) == 1 else f" and {len(jobs) - 1} more"
                output.confirm(f"delete {file}, which {jobs[0].id}{others} used?", yes=yes)
        for file in files:
            client.files.delete(file)
            if fmt is Format.TABLE:
                output.print_line(file)
    if fmt is Format.JSON:
        output.print_json({"deleted": files})


def _about(tokens: int | None) -> str:
    """Return an estimated count, rounded to the digits that are meaningful."""
    if not tokens:
        return "-"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if tokens >= size:
            text = f"~{tokens / size:.2g}{unit}" if tokens < 10 * size else f"~{tokens / size:.0f}{unit}"
            return Cell(text, tokens)
    return Cell(f"~{tokens}", tokens)


def _lengths(lengths: list[int]) -> str:
    """Return the histogram of the conversations' lengths, as `256…511: 12, 512…1023: 40 characters`."""
    shown = [f"{2**i if i else 0}…{2 ** (i + 1) - 1}: {n:,}" for i, n in enumerate(lengths) if n]
    return ", ".join(shown) + " characters" if shown else ""

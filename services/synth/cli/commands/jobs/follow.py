"""`synthctl jobs watch | events`: what happens to a job, and what happened."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from synth.cli.commands.jobs.options import JobArgument
from synth.cli.commands.submit import Patience
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Cell, Format, Output


def watch(
    ctx: typer.Context,
    job: JobArgument,
    after: Annotated[int, typer.Option(min=0, help="Begin behind this event's seq, as -o json prints it.")] = 0,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0.1, help="Seconds; then exit 124. The job goes on.")
    ] = None,
    patience: Patience = 600.0,
    fmt: Output = Format.TABLE,
) -> None:
    """Follow a job to its end; the exit code is its outcome. During an outage of the cluster it prints so, and waits.

    `-o json` prints one event a line, each once and in order. Ctrl-C stops watching (exit 130) and leaves the job.
    """
    from synth.cli.tui.follow import FollowOptions, follow_job

    with open_client(ctx) as client:
        options = FollowOptions(timeout=timeout, patience=patience)
        raise typer.Exit(follow_job(client, job, format=fmt, options=options, after=after))


def events(
    ctx: typer.Context,
    job: JobArgument,
    after: Annotated[int, typer.Option(min=0, help="Only events behind this seq.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; all without it.")] = None,
    type: Annotated[str | None, typer.Option(help="Only this type, as `train.step`.")] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Print the log of a job as it is now; `-o json` prints one event a line."""
    from synth.cli.tui.progress import describe

    rows: list[list[str]] = []
    with open_client(ctx) as client:
        matching = (event for event in client.jobs.events(job, after=after) if type in (None, event.type))
        for event in islice(matching, limit):
            if fmt is Format.JSON:
                output.print_json_line(event)
            else:
                summary = describe(event) or "-"
                time = Cell(f"{event.time.astimezone():%H:%M:%S}", event.time.isoformat())
                rows.append([str(event.seq), time, event.type, summary])
    if fmt is Format.TABLE:
        output.print_table(("seq", "time", "type", "what"), rows, wrap="what")

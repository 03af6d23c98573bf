"""`synthctl jobs pause | resume | cancel | rm`."""

from __future__ import annotations

import typer

from synth.cli.commands.jobs.options import JobArgument, JobsArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output, Yes


def pause(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Ask a job that runs to let go of its workers for a while. Pausing twice is pausing once."""
    with open_client(ctx) as client:
        paused = client.jobs.pause(job)
    if fmt is Format.JSON:
        return output.print_json(paused)
    output.message(f"{paused.id} {paused.state}")
    return output.hint(f"to go on with it: synthctl jobs resume {paused.id}")


def resume(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Go on from the last checkpoint of a paused job; of a failed one in a new job, whose id is printed."""
    with open_client(ctx) as client:
        resumed = client.jobs.resume(job)
    if fmt is Format.JSON:
        return output.print_json(resumed)
    if resumed.id == job:
        output.message(f"{resumed.id} goes on")
    else:
        output.message(f"{resumed.id} goes on from the last checkpoint of {job}")
        output.print_line(resumed.id)
    return output.hint(f"watch it with: synthctl jobs watch {resumed.id}")


def cancel(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Request that a job stops. Cancelling again sends the request again; a job that has ended is an error."""
    with open_client(ctx) as client:
        cancelled = client.jobs.cancel(job)
    if fmt is Format.JSON:
        return output.print_json(cancelled)
    return output.message(f"{cancelled.id} {cancelled.state}")


def rm(ctx: typer.Context, jobs: JobsArgument, yes: Yes = False, fmt: Output = Format.TABLE) -> None:
    """Delete jobs that have ended, with their rollouts, checkpoints and models; prints their ids.

    What a job that runs or another model still needs stays until then, and is listed nowhere.
    """
    output.confirm(f"delete {', '.join(jobs)} and all of their results?", yes=yes)
    with open_client(ctx) as client:
        for job in jobs:
            client.jobs.delete(job)
            if fmt is Format.TABLE:
                output.print_line(job)
    if fmt is Format.JSON:
        output.print_json({"deleted": jobs})

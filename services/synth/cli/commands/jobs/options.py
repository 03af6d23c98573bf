"""Arguments that several commands of `synthctl jobs` share."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.cli.connect import open_client
from synth.cli.tui.completion import complete_jobs


def _find_job(ctx: typer.Context, value: str | None) -> str | None:
    # A shell that completes a later word parses this one too.
    if value is None or ctx.resilient_parsing:
        return value
    from synth.cli.jobs.ids import find_job_id

    with open_client(ctx) as client:
        return find_job_id(client, value)


def _find_jobs(ctx: typer.Context, values: list[str] | None) -> list[str] | None:
    return values and [_find_job(ctx, value) or value for value in values]


#: A command that takes it is given the whole id.
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's id, its beginning, or @last.", callback=_find_job, autocompletion=complete_jobs
    ),
]
_SEVERAL = typer.Argument(
    metavar="JOB…",
    help="Ids of jobs, their beginnings, or @last.",
    show_default=False,
    callback=_find_jobs,
    autocompletion=complete_jobs,
)
#: The same for a command that takes several.
JobsArgument = Annotated[list[str], _SEVERAL]
#: Several jobs, or none, for a command that can find jobs in other ways.
OptionalJobsArgument = Annotated[list[str] | None, _SEVERAL]

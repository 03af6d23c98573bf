"""`synthctl jobs config`: a job's configuration, as a file that can be submitted again."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.cli.commands.jobs.options import JobArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.console.errors import CliError


def config(
    ctx: typer.Context,
    job: JobArgument,
    as_submitted: Annotated[
        bool, typer.Option("--as-submitted", help="The text that was sent, without what flags changed.")
    ] = False,
) -> None:
    """Print a job's configuration as TOML, every setting in it: `submit` makes the same job of it.

    `synthctl jobs config JOB > again.toml`, then `synthctl submit again.toml`.
    """
    import tomlkit

    from synth.cli.jobs.resolved import job_tables
    from synth.errors import NewerVersion

    with open_client(ctx) as client:
        stored = client.jobs.get(job)
    if stored.config is None:
        raise CliError(f"the backend does not have the text of {stored.id}")
    if as_submitted:
        return output.print_document(stored.config.rstrip("\n"))
    try:
        tables = job_tables(stored)
    except NewerVersion as error:
        raise CliError(str(error), fix="install the synthctl of the cluster's version", where=stored.id) from error
    if tables is None:
        raise CliError(
            f"{stored.id} is {stored.state}: it has no settings that could be submitted again",
            fix=f"to see the submitted file: synthctl jobs config {stored.id} --as-submitted",
        )
    text = f"# {stored.id}, with every setting that it ran with.\n\n{tomlkit.dumps(tables)}"
    return output.print_document(text.rstrip("\n"))

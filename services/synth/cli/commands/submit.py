"""`synthctl submit`: check, upload, create, follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.cli import output
from synth.cli.connect import client_of, config_of
from synth.cli.output import Format, Output

TaskUrl = Annotated[
    str | None, typer.Option("--task-url", help="The task app's address; TASK_APP_URL.", show_default=False)
]
Follow = Annotated[
    bool | None,
    typer.Option(
        "--follow/--detach",
        "-f/-d",
        help="Follow the job (default on a terminal), or only print its id.",
        show_default=False,
    ),
]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="The same key and job, sent twice, is one job; new each time by default.")
]
AllowExperimental = Annotated[
    bool, typer.Option("--allow-experimental", help="Take a model that is marked experimental.")
]
Data = Annotated[Path, typer.Option(help="Where `synthctl up` keeps its data.")]


def submit(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="A TOML job file, or - for standard input.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="Train from this model instead of the file's.")] = None,
    dataset: Annotated[Path | None, typer.Option(help="JSONL to train on (SFT): uploaded and checked.")] = None,
    validation: Annotated[Path | None, typer.Option(help="JSONL to validate on (SFT).")] = None,
    task_url: TaskUrl = None,
    seed: Annotated[int | None, typer.Option(help="The job's seed.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows, for a trial.")] = None,
    allow_experimental: AllowExperimental = False,
    follow: Follow = None,
    idempotency_key: IdempotencyKey = None,
    data: Data = Path(".synth"),
    fmt: Output = Format.TABLE,
) -> None:
    """Submit a job and follow it; the exit code is its outcome.

    The file is checked here first: every problem with its file:line, exit 2. Ctrl-C detaches (exit 130): the job
    goes on, and the message says how to watch and how to cancel it.
    """
    from synth.cli.submission import Flags, create, draft, finish, read_config

    settings = config_of(ctx)
    if task_url is None and settings.task_url is not None:
        task_url = settings.task_url.text
    flags = Flags(
        model=model,
        dataset=dataset,
        validation=validation,
        task_url=task_url,
        examples=examples,
        seed=seed,
        allow_experimental=allow_experimental,
    )
    name = "stdin" if str(config) == "-" else str(config)
    job = draft(read_config(config), name=name, flags=flags, models_dir=data / "models")
    for warning in job.resolved.warnings:
        output.warn(warning)
    with client_of(ctx) as client:
        created = create(client, settings, job, key=idempotency_key)
        wanted = output.is_terminal() if follow is None else follow
        raise typer.Exit(finish(client, created, follow=wanted, format=fmt))

"""`synthctl submit`: check, upload, create, follow."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from synth.cli.connect import Backend, EnvFiles, TrustApp, load_config, open_client, override_options
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output
from synth.console.errors import UsageProblem

TaskUrl = Annotated[str | None, typer.Option(metavar="URL", help="The task app's address; TASK_APP_URL.")]
Follow = Annotated[
    bool | None,
    typer.Option("--follow/--detach", "-f/-d", help="Follow the job (default on a terminal), or only print its id."),
]
NoPoll = Annotated[bool, typer.Option("--no-poll", help="The same as --detach.")]
PollTimeout = Annotated[
    float | None, typer.Option(metavar="S", min=0.1, help="Follow for so many seconds, then exit 124: the job goes on.")
]
PollInterval = Annotated[
    float,
    typer.Option(
        metavar="S",
        min=0.05,
        help="Seconds between looks, where events cannot be streamed; streamed ones come at once.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(metavar="S", min=0, help="Seconds that the cluster may be away while the job is followed."),
]
Idempotency = Annotated[
    str | None, typer.Option(metavar="KEY", help="The same key and job, sent twice, is one job; else a new one.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the file, as training.learning_rate=1e-5; repeatable. The submitted text contains it.",
    ),
]
Tag = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Tag the job, to find it by; repeatable.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="The job's name, instead of its file's.")]
AllowExperimental = Annotated[
    bool, typer.Option("--allow-experimental", help="Take a model that is marked experimental.")
]
NoPreflight = Annotated[
    bool,
    typer.Option(
        "--no-preflight", help="Check only the file first; datasets, model and task app are left to the cluster."
    ),
]
DEFAULT_DATA = Path(".synth")
Data = Annotated[Path, typer.Option(metavar="DIR", help="Where `synthctl up` keeps its data.")]


def submit(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML job file, or - for standard input.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Train from this model instead of the file's.", autocompletion=complete_models),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSONL to train on (SFT, or a grader's): uploaded and checked.")
    ] = None,
    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="JSONL to validate on (SFT).")] = None,
    task_url: TaskUrl = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A task app (app.py, pkg.app, or its id) that is served while the job is followed."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The job's seed.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Only the first rows, for a trial.")] = None,
    set_: Set = None,
    name: Name = None,
    tag: Tag = None,
    allow_experimental: AllowExperimental = False,
    no_preflight: NoPreflight = False,
    trust_app: TrustApp = False,
    follow: Follow = None,
    no_poll: NoPoll = False,
    poll_timeout: PollTimeout = None,
    poll_interval: PollInterval = 1.0,
    patience: Patience = 600.0,
    check_timeout: Annotated[
        float, typer.Option(metavar="S", min=1, help="Seconds until an uploaded dataset is checked.")
    ] = 600.0,
    idempotency: Idempotency = None,
    backend: Backend = None,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Submit a job and follow it; the exit code is its outcome.

    The job is checked first, as `config check` does it: its file and its datasets; the cluster checks its model and
    every other reason to refuse it. The task app is checked from here and, if it cannot be reached from here, by the
    cluster. With a problem nothing is uploaded, no job is created, and the exit code is 2. Ctrl-C detaches (exit 130):
    the job goes on, and the message shows how to watch and how to cancel it.

    With `--app` the task app is served for the cluster of this machine while the job is followed: when this command
    ends before the job does, the job is cancelled.
    """
    from synth.cli.checking.cluster import AskedCluster
    from synth.cli.checking.job_file import require_fit
    from synth.cli.jobs.files import Flags, name_of, read_config
    from synth.cli.jobs.set_values import settings_of_flags
    from synth.cli.submission import (
        cancelled_if_left,
        check_locally,
        follow_or_detach,
        submit_job,
        task_app_address,
    )
    from synth.cli.tui.follow import FollowOptions

    override_options(ctx, backend=backend, env_files=env_file)
    if app is not None:
        task_url = _serve(ctx, app, task_url, data=data, waits=not no_poll and follow is not False)
    settings = load_config(ctx)
    flags = Flags(
        model=model,
        dataset=dataset,
        validation=validation,
        task_url=task_app_address(task_url, settings),
        examples=examples,
        seed=seed,
        allow_experimental=allow_experimental,
        settings=settings_of_flags(set_, tag),
    )
    here, models_dir = settings.is_on_this_machine, data / "models"
    job = check_locally(read_config(config), name=name_of(config), flags=flags, models_dir=models_dir if here else None)
    if app is not None and job.task_app is None:
        what = f"no task app plays the rollouts of this job of kind {job.kind}"
        raise UsageProblem(what, fix="leave --app out", where="--app")
    for warning in job.found.warnings:
        output.warn(warning)
    with open_client(ctx) as client:
        if not no_preflight:
            require_fit(job, models_dir, AskedCluster(client, here, needed=True))
        created = submit_job(
            client,
            settings,
            job,
            key=idempotency,
            name=name,
            check_timeout=check_timeout,
            looks=not no_preflight,
            trust_app=trust_app,
        )
        attached = app is not None or (not no_poll and (output.is_terminal() if follow is None else follow))
        options = FollowOptions(timeout=poll_timeout, interval=poll_interval, patience=patience, detaches=app is None)
        with contextlib.nullcontext() if app is None else cancelled_if_left(client, created.id):
            code = follow_or_detach(client, created, follow=attached, options=options, format=fmt)
        raise typer.Exit(code)


def _serve(ctx: typer.Context, app: str, task_url: str | None, *, data: Path, waits: bool) -> str:
    """Serve the app of `--app`; returns its address."""
    from synth.cli.task_apps.for_job import serve_for_job

    if task_url is not None:
        what = "--app serves a task app, and --task-url names one that runs"
        raise UsageProblem(what, fix="leave one of them out", where="--app")
    return serve_for_job(ctx, app, flag="--app", data=data, waits=waits)[1]

"""`synthctl eval run`: an evaluation job and its result."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.evaluation.dataset import (
    ApiPatience,
    BaseUrl,
    Grader,
    Judge,
    Limit,
    Prices,
    ReplyTimeout,
    TrustModelUrl,
    run_comparison,
)
from synth.cli.commands.evaluation.results import PerSeed, as_data, interval_rows, print_seeds
from synth.cli.commands.submit import (
    DEFAULT_DATA,
    AllowExperimental,
    Data,
    Follow,
    Idempotency,
    Name,
    NoPoll,
    NoPreflight,
    Patience,
    PollInterval,
    PollTimeout,
    Set,
    Tag,
    TaskUrl,
)
from synth.cli.connect import (
    Backend,
    EnvFiles,
    TrustApp,
    flags_of_command_line,
    load_config,
    open_client,
    override_options,
)
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output
from synth.console.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from synth.cli.evaluation.rewards import Evaluation

#: The parameters of an evaluation on a task app alone, and of one on a dataset alone.
_OF_TASK_APP = (
    "config seeds task_url app_id env_name max_turns set_ name tag idempotency per_seed no_poll follow poll_timeout"
)
_OF_DATASET = "grader judge base_url trust_model_url limit price out"


def evaluate(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A TOML with [eval]; or say it with the flags.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="The model to evaluate; with --dataset repeatable.", autocompletion=complete_models
        ),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(metavar="ROWS", help="Evaluate on the rows of this file, without a task app.")
    ] = None,
    grader: Grader = None,
    judge: Judge = None,
    base_url: BaseUrl = None,
    trust_model_url: TrustModelUrl = False,
    limit: Limit = None,
    price: Prices = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --dataset: the folder of replies and reports; `evaluation` if none."),
    ] = None,
    api_patience: ApiPatience = 300.0,
    reply_timeout: ReplyTimeout = 600.0,
    seeds: Annotated[str | None, typer.Option(metavar="SEEDS", help='One rollout on each: "0-99" or "1,2,5".')] = None,
    task_url: TaskUrl = None,
    app_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="A task app of this folder or below: without --task-url it is served while the evaluation runs.",
        ),
    ] = None,
    env_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment; the app's own if none.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T", min=0, help="The sampling temperature; by default 1, or the API's own with --dataset."
        ),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Sampled tokens a call, at most.")] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Calls of the model a rollout; the app's own limit if none.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Rollouts at one time.")] = None,
    rollouts_per_seed: Annotated[
        int | None, typer.Option(min=1, help="Rollouts of each seed, for mean@k and pass@k; replies to each row.")
    ] = None,
    per_seed: PerSeed = False,
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
    idempotency: Idempotency = None,
    backend: Backend = None,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Evaluate a model over seeds of a task app, wait, and print the mean reward with a 95 % confidence interval.

    The interval is Wilson's where every reward is 0 or 1, else Student's. With --rollouts-per-seed each seed is played
    several times, and mean@k and pass@k are printed too. `run` may be left out. `--detach` only prints
    the job's id. The exit code is the job's outcome.

    With `--app-id` and no `--task-url`, the app is found as `apps ls` finds it and served for the cluster of this
    machine while this command waits: when the wait ends before the job does, the job is cancelled.

    With `--dataset ROWS` there is no task app and no job: each --model replies to every row, here, and is compared with
    the first one. `synthctl compare --help` describes the tables, the reports and where models are served.
    """
    from synth.cli.checking.cluster import AskedCluster
    from synth.cli.checking.job_file import require_fit
    from synth.cli.evaluation.rewards import find_evaluation
    from synth.cli.jobs.files import Flags, name_of, read_config
    from synth.cli.jobs.set_values import settings_of_flags
    from synth.cli.submission import (
        app_max_turns,
        cancelled_if_left,
        check_locally,
        confirm_app,
        follow_or_detach,
        submit_job,
        task_app_address,
    )
    from synth.cli.tui.follow import FollowOptions, follow_job, show_outcome, wait_for_job

    override_options(ctx, backend=backend, env_files=env_file)
    models = list(model or ())
    if dataset is not None:
        from synth.cli.sampling.endpoints import HostedModels, SamplingOptions

        _refuse(ctx, _OF_TASK_APP, "has no effect on a dataset", "--dataset")
        if not models:
            raise UsageProblem("--model missing", fix="name one model or more: --model ID", where="--dataset")
        return run_comparison(
            ctx,
            models=models,
            dataset=dataset,
            out=out or Path("evaluation"),
            grader=grader,
            judge=judge,
            hosted=HostedModels(base_url, trust_model_url, api_patience, reply_timeout),
            sampling=SamplingOptions(temperature=temperature, max_tokens=max_tokens),
            samples=rollouts_per_seed or 1,
            concurrency=concurrency or 8,
            limit=limit,
            price=price,
            fmt=fmt,
        )
    _refuse(ctx, _OF_DATASET, "has no effect without --dataset ROWS", "synthctl eval")
    if len(models) > 1:
        raise UsageProblem(f"{len(models)} models", expected="one --model; several with --dataset ROWS")
    served_model = models[0] if models else None
    served = app_id is not None and task_url is None
    if app_id is not None and task_url is None:
        from synth.cli.task_apps.for_job import serve_for_job

        waits = not no_poll and follow is not False
        app_id, task_url = serve_for_job(ctx, app_id, flag="--app-id", data=data, waits=waits)
    elif app_id is not None and config is not None:
        what = "--app-id beside a file and --task-url"
        raise UsageProblem(what, expected="env_name in the file's [eval]", where=str(config))
    settings = load_config(ctx)
    env_name = env_name or (app_id if config is None else None)
    address = task_app_address(task_url, settings)
    flags_given = {
        "seeds": seeds,
        "env_name": env_name,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "max_turns": max_turns,
        "concurrency": concurrency,
        "rollouts_per_seed": rollouts_per_seed,
    }
    flags_given = {name: value for name, value in flags_given.items() if value is not None}
    if config is None:
        if address is not None:
            confirm_app(settings, address, trusted=trust_app)
        if max_turns is None and address is not None and (own := app_max_turns(address, settings)) is not None:
            output.hint(f"max_turns: {own}, the app's own")
            flags_given["max_turns"] = own
        text, file_name = _toml(served_model, address.text if address else None, flags_given), "synthctl eval"
    else:
        if flags_given:
            flag = "--" + next(iter(flags_given)).replace("_", "-")
            raise UsageProblem(f"{flag} beside a file", expected="it in the file's [eval]", where=str(config))
        text, file_name = read_config(config), name_of(config)
    flags = Flags(
        model=served_model,
        task_url=address,
        allow_experimental=allow_experimental,
        settings=settings_of_flags(set_, tag),
    )
    here, models_dir = settings.is_on_this_machine, data / "models"
    job = check_locally(text, name=file_name, flags=flags, models_dir=models_dir if here else None)
    if job.kind != "eval":
        raise UsageProblem(
            f"this is a job of kind {job.kind}", fix=f"submit it: synthctl submit {file_name}", where=file_name
        )
    for warning in job.found.warnings:
        output.warn(warning)
    with open_client(ctx) as client:
        if not no_preflight:
            require_fit(job, models_dir, AskedCluster(client, here, needed=True))
        created = submit_job(
            client, settings, job, key=idempotency, name=name, looks=not no_preflight, trust_app=trust_app
        )
        options = FollowOptions(timeout=poll_timeout, interval=poll_interval, patience=patience, detaches=not served)
        if no_poll or follow is False:
            raise typer.Exit(follow_or_detach(client, created, follow=False, options=options, format=fmt))
        with cancelled_if_left(client, created.id) if served else contextlib.nullcontext():
            if fmt is Format.TABLE:
                code = follow_job(client, created.id, format=fmt, options=options, emit=output.message)
                ended = client.jobs.get(created.id)
            else:
                ended, code = wait_for_job(client, created.id, options=options)
                show_outcome(ended)
        # The measures of a failed job are not the result that the user requested.
        evaluation = find_evaluation(client, ended.id) if code is ExitCode.OK else None
    if code is ExitCode.INTERRUPTED:
        raise typer.Exit(code)
    if fmt is Format.JSON:
        values = ended.eval or {}
        result = as_data(evaluation) if evaluation else {}
        names = ["interval", *(name for name in ("measures",) if name in result), *(["seeds"] if per_seed else [])]
        detail = {name: result.get(name) for name in names}
        summary = {"job": ended.id, "state": ended.state, "model": ended.source_model, "values": values}
        output.print_json(summary | detail)
    elif ended.eval is not None:
        if evaluation and per_seed:
            print_seeds(evaluation)
        _print_result(ended.eval, evaluation)
    raise typer.Exit(code)


def _refuse(ctx: typer.Context, parameters: str, reason: str, where: str) -> None:
    """Refuse flags that would change nothing. Raises `UsageProblem`."""
    if given := flags_of_command_line(ctx, parameters.split()):
        raise UsageProblem(f"{', '.join(given)} {reason}", fix="remove it", where=where)


def _print_result(values: dict[str, float], evaluation: Evaluation | None) -> None:
    """Print every measure: the mean reward with its interval first, then mean@k and pass@k with theirs."""
    from synth.cli.comparison.table import interval_text

    rows: list[list[str]] = []
    ends = {f"{name}{end}" for name in values if "@" in name for end in ("_low", "_high")}
    for name in sorted(values.keys() - ends, key=_place):
        rows.append([name, output.number(values[name])])
        if f"{name}_low" in ends & values.keys():
            rows.append([f"{name} 95 % interval", interval_text(values[f"{name}_low"], values[f"{name}_high"])])
        if name == "reward_mean" and evaluation is not None:
            rows += [list(row) for row in interval_rows(evaluation)]
    output.print_table(("measure", "result"), rows)


def _place(name: str) -> tuple[bool, bool, str, int, str]:
    """Return the sort key of a measure: pass@2 comes before pass@16."""
    kind, _, k = name.partition("@")
    return name != "reward_mean", not k, kind, int(k) if k.isdecimal() else 0, name


def _toml(model: str | None, task_url: str | None, flags_given: dict[str, object]) -> str:
    missing = [flag for flag, value in (("--model", model), ("--seeds", flags_given.get("seeds"))) if value is None]
    if task_url is None:
        missing.append("--task-url")
    if missing:
        raise UsageProblem(f"{', '.join(missing)} missing", fix="give a TOML with [eval], or all of these flags")
    values = {"model": model, "task_app_url": task_url, **flags_given}
    # TOML's basic strings and numbers are JSON's.
    return "[eval]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

"""`synthctl config`: job files, looked at before they are submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, AllowExperimental, Data, Set, TaskUrl
from synth.cli.connect import Backend, EnvFiles, TrustApp, load_config, override_options
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import CliError, ExitCode, UsageProblem

if TYPE_CHECKING:
    from synth.cli.checking.cluster import AskedCluster
    from synth.cli.jobs.files import Flags
    from synth.cli.jobs.starter import ModelFacts
    from synth.cli.tui.explain import CheckReport
    from synth.client.connections.config import Config, ConfigValue

app = typer.Typer(no_args_is_help=True, help="Check, explain and begin job files.")

Model = Annotated[str | None, typer.Option(metavar="ID", help="The model, instead of the file's.")]
Dataset = Annotated[Path | None, typer.Option(metavar="FILE", help="JSONL to train on (SFT).")]
Validation = Annotated[Path | None, typer.Option(metavar="FILE", help="JSONL to validate on (SFT).")]


class Starter(StrEnum):
    """The kinds of job that have a starter file."""

    RL = "rl"
    SFT = "sft"
    DPO = "dpo"
    EVAL = "eval"


@app.command("check")
def check(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="TOML job files, or -.")],
    model: Model = None,
    dataset: Dataset = None,
    validation: Validation = None,
    task_url: TaskUrl = None,
    set_: Set = None,
    allow_experimental: AllowExperimental = False,
    trust_app: TrustApp = False,
    backend: Backend = None,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Print every problem of job files, each with its file:line; exit 2 if there are any.

    Datasets are read line by line. The cluster checks the models and uploaded files that the file names; if it is
    unavailable, warnings name the values that were not checked. Keys without effect are warnings. With `--task-url`,
    the task app is checked too: whether it plays the file's `env_name`.
    """
    from synth.cli.checking.cluster import open_cluster
    from synth.client.connections.config import ConfigValue

    override_options(ctx, backend=backend, env_files=env_file)
    flags = _flags(
        ctx,
        task_url,
        model=model,
        dataset=dataset,
        validation=validation,
        experimental=allow_experimental,
        sets=set_,
    )
    settings = load_config(ctx)
    task_app = (
        None if task_url is None else _ask_task_app(ConfigValue(task_url, "--task-url"), settings, trusted=trust_app)
    )
    with open_cluster(settings) as cluster:
        reports = [_check_file(file, flags, data / "models", cluster, task_app) for file in files]
    if fmt is Format.JSON:
        output.print_json(reports)
    else:
        for report in reports:
            _print_report(report)
    raise typer.Exit(ExitCode.USAGE if any(report.problems for report in reports) else ExitCode.OK)


@app.command("explain")
def explain(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML job file, or -.")],
    model: Model = None,
    dataset: Dataset = None,
    validation: Validation = None,
    task_url: TaskUrl = None,
    seed: Annotated[int | None, typer.Option(help="The job's seed.")] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    set_: Set = None,
    allow_experimental: AllowExperimental = False,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Show the job that a file makes: each setting, its origin, its changes with their reason; its memory and blobs.

    Takes the flags of `synthctl submit`. Needs no cluster.
    """
    from rich.text import Text

    from synth.cli.checking.job_file import examine
    from synth.cli.tui.explain import SettingsTable, format_value, settings_of, summary
    from synth.errors import UserError
    from synth.local.devices.memory import describe_memory, job_memory, memory_rows

    override_options(ctx, backend=None, env_files=env_file)
    flags = _flags(
        ctx,
        task_url,
        model=model,
        dataset=dataset,
        validation=validation,
        seed=seed,
        examples=examples,
        experimental=allow_experimental,
        sets=set_,
    )
    looked = examine(file, flags, data / "models")
    name, found, warnings = looked.name, looked.found, [*looked.found.warnings, *looked.warnings]
    if found.problems:
        for warning in warnings:
            output.warn(warning)
        raise UserError(found.problems)
    settings = settings_of(found)
    memory = None if found.job is None else job_memory(found.job, data / "models")
    if fmt is Format.JSON:
        document = {"file": name, "kind": found.kind, "settings": settings, "warnings": warnings, "memory": memory}
        output.print_json(document)
        return
    if output.is_terminal():
        output.out().print(Text(f"{name}: {summary(found)}", style="bold"), SettingsTable(settings, name), sep="\n\n")
    else:
        rows = [[s.key, format_value(s.value), s.origin, s.why] for s in settings]
        output.print_table(("setting", "value", "from", "why"), rows)
    if memory is not None and output.is_terminal():
        output.out().print("", output.table(("memory", "size", "of"), memory_rows(memory), wrap="of"), sep="\n")
    for sentence in [] if memory is None or output.is_terminal() else describe_memory(memory):
        output.hint(sentence)
    for warning in warnings:
        # Why a value was changed stands with the value.
        if not any(why in warning for why in found.changed.values()):
            output.warn(warning)


@app.command("init")
def init(
    ctx: typer.Context,
    kind: Annotated[Starter, typer.Argument(metavar="KIND", help="The kind of job.")] = Starter.RL,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="The model that the values fit; without it, one of the cluster's.")
    ] = None,
    vision: Annotated[bool, typer.Option("--vision", help="Write a job for a model that sees images.")] = False,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there; never over another file.")] = None,
    env_file: EnvFiles = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Print a commented job file to start from, with values that fit the size of the model.

    The size is read from the model's folder on this machine, or known from a hosted id; for any other model, the
    values fit a model of a few billion parameters.
    """
    from synth.cli.jobs.starter import starter

    if vision and kind is Starter.DPO:
        raise UsageProblem("there is no DPO of images", expected="rl, sft or eval with --vision")
    override_options(ctx, backend=None, env_files=env_file)
    text = starter(kind.value, _starting_model(ctx, model, data / "models", vision=vision), vision=vision)
    if to is None:
        output.print_document(text.rstrip("\n"))
        return
    try:
        with to.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        what = "this is a directory" if to.is_dir() else "this file exists"
        raise UsageProblem(what, expected="a new file's name", fix="give another --to", where=str(to)) from error
    except FileNotFoundError as error:
        what = f"there is no directory {to.parent}"
        raise UsageProblem(
            what, expected="a new file's name", fix="make it, or give another --to", where="--to"
        ) from error
    dataset = " --dataset FILE" if kind in (Starter.SFT, Starter.DPO) else ""
    output.hint(f"wrote {to}; look at it with: synthctl config check {to}{dataset}")


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of job files, for editors that complete and check keys.

    `synthctl config schema > job.schema.json`; then `#:schema job.schema.json` is the first line of a job file.
    """
    from synth.jobs.json_schema import job_file_schema

    output.print_json(job_file_schema())


def _starting_model(ctx: typer.Context, named: str | None, models_dir: Path, *, vision: bool) -> ModelFacts | None:
    """Return the model of a new job file: the named one, else a base that the cluster has; None if unknown."""
    from synth.cli.checking.cluster import open_cluster
    from synth.cli.jobs.starter import model_facts

    with open_cluster(load_config(ctx)) as cluster:
        models = [] if cluster.client is None else cluster.client.models.list()
    bases = [model for model in models if model.kind == "base" and ("-vl" in model.id.lower()) == vision]
    if named is None and bases:
        # Weights of its own before a stand-in under a hosted id.
        bases.sort(key=lambda model: (model.stand_in is not None, model.id))
        named = bases[0].id
        others = f": {', '.join(model.id for model in bases[1:])}" if bases[1:] else ""
        output.hint(f"the model is {named}, which the cluster has; --model names another one{others}")
    if named is None:
        return None
    return model_facts(named, models_dir, runs_as=next((m.stand_in for m in models if m.id == named), None))


def _flags(
    ctx: typer.Context,
    task_url: str | None,
    *,
    model: str | None,
    dataset: Path | None,
    validation: Path | None,
    experimental: bool,
    sets: list[str] | None,
    seed: int | None = None,
    examples: int | None = None,
) -> Flags:
    from synth.cli.jobs.files import Flags
    from synth.cli.jobs.set_values import settings_of_flags
    from synth.cli.submission import task_app_address

    return Flags(
        model=model,
        dataset=dataset,
        validation=validation,
        task_url=task_app_address(task_url, load_config(ctx)),
        examples=examples,
        seed=seed,
        allow_experimental=experimental,
        settings=settings_of_flags(sets, None),
    )


@dataclass(frozen=True)
class _TaskApp:
    """A task app's own description. env_names: () if it lists none; unasked: why it could not be read."""

    url: str
    env_names: tuple[str, ...] = ()
    unasked: str = ""


def _ask_task_app(address: ConfigValue, settings: Config, *, trusted: bool) -> _TaskApp:
    from synth.cli.api.task_app import NotAnAddress
    from synth.cli.submission import confirm_app
    from synth.cli.task_apps.preflight import Seen, look_at

    url = address.text
    try:
        confirm_app(settings, address, trusted=trusted)
        look = look_at(address, settings.environment_key)
    except NotAnAddress:
        # A problem of the file's own check.
        return _TaskApp(url)
    # A file may be checked before its app runs; a submission looks again.
    return _TaskApp(
        url, look.env_names, "" if look.seen is Seen.WELL else f"{look.found}: its env_name was not checked"
    )


def _check_file(file: Path, flags: Flags, models_dir: Path, cluster: AskedCluster, app: _TaskApp | None) -> CheckReport:
    from synth.cli.checking.job_file import check
    from synth.cli.jobs.files import name_of
    from synth.cli.tui.explain import CheckReport, summary
    from synth.errors import UserError
    from synth.taskapp.env_names import wrong_env_name

    try:
        looked = check(file, flags, models_dir, cluster)
    except (UserError, CliError) as error:
        return CheckReport(file=name_of(file), problems=list(error.problems))
    report = looked.found
    problems, warnings = [*report.problems], [*report.warnings, *looked.warnings]
    if app is not None and report.job is not None and report.job.play is not None:
        warnings += [app.unasked] if app.unasked else []
        place = report.origins["rollout.env_name"]
        if wrong := wrong_env_name(report.job.play.env_name, app.env_names, where=place, url=app.url):
            problems.append(wrong)
    return CheckReport(
        file=looked.name,
        kind=report.kind,
        problems=problems,
        warnings=warnings,
        summary="" if problems else summary(report),
    )


def _print_report(report: CheckReport) -> None:
    for warning in report.warnings:
        output.warn(warning)
    output.show_problems(report.problems)
    if not report.problems:
        output.print_sentence(f"{report.file}: {report.summary}")

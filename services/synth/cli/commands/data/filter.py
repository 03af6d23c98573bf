"""`synthctl filter`: from traces to a dataset."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.commands.submit import Set
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_jobs
from synth.cli.tui.output import Format, Output

if TYPE_CHECKING:
    from synth.cli.filtering.rules import Rules
    from synth.cli.filtering.run import Report
    from synth.cli.jobs.set_values import Assignment
    from synth.client import Client


def filter_traces(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A TOML with [filter]; not needed with --job.")
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB",
            help="The traces of this job: its id, its beginning, or @last. Repeatable.",
            autocompletion=complete_jobs,
        ),
    ] = None,
    db: Annotated[str | None, typer.Option(metavar="FILE", help="A trace database of the published clients.")] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="The JSONL that is written.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Keep the best N of each seed.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows, at most.")] = None,
    upload: Annotated[
        bool, typer.Option("--upload", help="Upload the rows, and print the file's id in place of its path.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds to wait for the upload's check.")] = 600.0,
    sets: Set = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Turn traces into a dataset: rows with `messages`, ready for SFT. Prints its path, or with --upload its id.

    Prints on stderr how many rows each key dropped. Exit 1 if no row is left.
    """
    from synth.cli.jobs.files import name_of, read_config
    from synth.cli.jobs.ids import find_job_id
    from synth.cli.jobs.set_values import settings_of_flags

    text = "" if config is None else read_config(config)
    # A filter of a client's database that is not uploaded needs no cluster.
    with tempfile.TemporaryDirectory(prefix="synthctl-rows-") as folder:
        flags = {"db": db, "output": out, "min_reward": min_reward, "top_k": top_k, "limit": limit}
        if job:
            with open_client(ctx) as client:
                flags["jobs"] = [find_job_id(client, name) for name in job]
        settings = [*settings_of_flags(sets, None), *_settings(flags)]
        if upload and out is None:
            settings += _default_output(text, settings, str(Path(folder) / "rows.jsonl"))
        rules = _rules(text, name_of(config) if config else "the command line", settings)
        with nullcontext() if rules.db is not None and not upload else open_client(ctx) as client:
            report = _run(client, rules)
            for sentence in report.sentences():
                output.message(sentence)
            if upload and client is not None:
                _upload(client, report, timeout=timeout)
        kept = config is not None or out is not None or not upload
    if fmt is Format.JSON:
        return output.print_json(report)
    if report.validation_file or report.validation:
        output.hint(f"validation: {report.validation_file or report.validation}")
    if report.file and kept and out is not None:
        output.hint(f"written to {report.output}")
    return output.print_line(report.file or report.output)


def _settings(flags: dict[str, Any]) -> list[Assignment]:
    """Return the settings of `[filter]` that the flags make."""
    from synth.cli.jobs.set_values import Assignment

    named = {"output": "out", "jobs": "job"}
    return [
        Assignment(("filter", key), value, f"--{named.get(key, key).replace('_', '-')}")
        for key, value in flags.items()
        if value is not None
    ]


def _default_output(text: str, settings: list[Assignment], path: str) -> list[Assignment]:
    """Return the setting of an output path for rows that are only uploaded; none if the file or a flag sets it."""
    from synth.cli.jobs.set_values import Assignment, set_values

    _, document = set_values(text, name="", settings=settings)
    if any(document.get(("filter", key)) is not None for key in ("output", "output_dir")):
        return []
    return [Assignment(("filter", "output"), path, "--upload")]


def _rules(text: str, name: str, settings: list[Assignment]) -> Rules:
    """Return the filter that a file and the flags describe. Raises `UserError` with every problem."""
    from synth.cli.filtering.rules import Rules
    from synth.cli.jobs.files import Flags, validate_text
    from synth.client.submission import LenientRegistry
    from synth.errors import UserError

    if not text and not settings:
        from synth.console.errors import UsageProblem

        fix = "for one job: synthctl filter --job @last --min-reward 1 --upload"
        raise UsageProblem("there is nothing to filter", expected="a TOML with [filter], or --job", fix=fix)
    flags = Flags(settings=tuple(settings))
    _, found = validate_text(text, name=name, flags=flags, registry=LenientRegistry())
    if found.kind != "filter":
        from synth.console.errors import UsageProblem

        what = f"this is a job ({found.kind})" if found.kind else "this is no filter"
        raise UsageProblem(what, expected="a TOML with [filter]", fix="`synthctl submit` runs jobs", where=name)
    if found.problems:
        raise UserError(found.problems)
    for warning in found.warnings:
        output.warn(warning)
    return Rules.of(found.values)


def _run(client: Client | None, rules: Rules) -> Report:
    from synth.cli.filtering.client_traces import ClientTraces
    from synth.cli.filtering.run import run_filter
    from synth.cli.filtering.sources import PlatformTraces
    from synth.cli.jobs.ids import find_job_id
    from synth.cli.traces.images import Images
    from synth.jobs.lifecycle import TERMINAL

    if rules.db is not None:
        return run_filter(rules, ClientTraces.open(rules.db, images=rules.include_images))
    assert client is not None
    jobs = [find_job_id(client, name) for name in rules.jobs] if rules.jobs else None
    for job in jobs or ():
        if client.jobs.get(job).state not in TERMINAL:
            output.hint(f"{job} still runs: only its traces so far are filtered")
    images = Images(client.image) if rules.include_images else None
    return run_filter(rules, PlatformTraces(client, jobs, images))


def _upload(client: Client, report: Report, *, timeout: float) -> None:
    from synth.cli.transfer.upload import upload_ready

    report.file = upload_ready(client, Path(report.output), timeout=timeout).id
    if report.validation is not None:
        report.validation_file = upload_ready(client, Path(report.validation), timeout=timeout).id

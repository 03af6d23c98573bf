"""`synthctl jobs ls | get`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from synth.cli.commands.jobs.options import JobArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Cell, Format, Output

if TYPE_CHECKING:
    from synth.api.schemas import Job, JudgeTotals


class Kind(StrEnum):
    """Kinds of job."""

    SFT = "sft"
    RL = "rl"
    EVAL = "eval"


def ls(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only jobs in this state, as `started`.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only jobs of this kind.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs with this name, or this [model].label.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only jobs with this tag; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    fmt: Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    with open_client(ctx) as client:
        jobs = [*client.jobs.list(state=state, kind=kind, name=name, tags=tag or (), limit=limit)]
    if fmt is Format.JSON:
        return output.print_json(jobs)
    rows = [
        [j.id, job_name(j), j.kind or "-", j.state, steps_done(j), output.age(j.created_at), j.model or "-"]
        for j in jobs
    ]
    output.print_table(("id", "name", "kind", "state", "step", "age", "model"), rows, wrap="model")
    if not jobs:
        output.hint("no such jobs" if state or kind or name or tag else "no jobs yet: synthctl submit FILE")
    return None


def get(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Show one job."""
    with open_client(ctx) as client:
        shown = client.jobs.get(job)
    if fmt is Format.JSON:
        return output.print_json(shown)
    output.print_pairs(_pairs(shown))
    for warning in shown.warnings:
        output.warn(warning)
    for warned in shown.warned.values():
        output.warn(warned.problem.text())
    output.show_problems(shown.problems, label="problem")
    return None


def job_name(job: Job) -> str:
    """Return a job's name as every command shows it; a path is shortened to the file's name."""
    return job.name.rpartition("/")[2]


def steps_done(job: Job) -> str:
    """Return the job's progress, such as `12/30`."""
    return "-" if not job.step else f"{job.step}/{job.steps}" if job.steps else str(job.step)


def _pairs(job: Job) -> list[tuple[str, str]]:
    from synth.cli.tui.progress import HEADLINES, waiting_text

    waiting = job.waiting
    pairs = [
        ("id", job.id),
        ("name", job_name(job)),
        ("label", job.label or ""),
        ("kind", job.kind or ""),
        ("state", job.state),
        ("reason", job.reason),
        ("verdict", job.verdict.text() if job.verdict else ""),
        ("step", steps_done(job) if job.step else ""),
        ("attempt", str(job.attempt) if (job.attempt or 0) > 1 else ""),
        ("source", job.source_model or ""),
        ("stand-in", f"{job.stand_in}, for {_base(job)}" if job.stand_in else ""),
        ("model", job.model or ""),
        ("created", _moment(job.created_at)),
        ("continues", job.linked_job_id or ""),
        ("ended", _moment(job.ended_at)),
        ("queued", queued(job)),
        ("ran", ran(job)),
        ("waiting", waiting_text(waiting.need, waiting.pool, waiting.position) if waiting else ""),
        ("judged", _judged(job.judge) if job.judge else ""),
        ("rollouts", ", ".join(f"{n} {what}" for what, n in msgspec.structs.asdict(job.rollouts).items() if n)),
        ("values", output.named_values((n, job.values[n]) for n in HEADLINES if n in job.values)),
        ("evaluation", output.named_values((job.eval or {}).items())),
        ("tags", "  ".join(f"{k}={v}" for k, v in job.tags.items())),
    ]
    return [(label, text) for label, text in pairs if text]


def _base(job: Job) -> str:
    from synth.models import parse_finetuned

    made = parse_finetuned(job.source_model or "")
    return made.base if made else job.source_model or ""


def _moment(moment: object) -> str:
    from datetime import datetime

    if not isinstance(moment, datetime):
        return ""
    return Cell(f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({output.age(moment)} ago)", moment.isoformat())


def queued(job: Job) -> str:
    """Return how long a job has waited for workers, pauses not counted."""
    from datetime import UTC, datetime

    return _time(job.times.queued(datetime.now(UTC)), ", still waits" if job.times.queued_since else "")


def ran(job: Job) -> str:
    """Return how long workers have worked on a job; "" before one has started it."""
    from datetime import UTC, datetime

    if job.started_at is None:
        return ""
    return _time(job.times.ran(datetime.now(UTC)), ", still runs" if job.times.running_since else "")


def _time(seconds: float, goes_on: str) -> str:
    return Cell(f"{output.seconds(seconds)}{goes_on}", round(seconds, 3))


def _judged(judge: JudgeTotals) -> str:
    """Return the judges' counts in one line."""
    parts = [f"{judge.judged} rollouts", f"{output.number(judge.calls_per_rollout)} calls each"]
    parts += [f"{output.number(judge.tokens)} tokens"]
    parts += [f"cost {output.number(judge.cost)}"] if judge.cost else []
    parts += [f"{judge.unscored} without scores"] if judge.unscored else []
    return ", ".join(parts)

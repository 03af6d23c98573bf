"""`synthctl jobs …`: find, watch, measure, pause and cancel jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

if TYPE_CHECKING:
    from synth.api.schemas import Job, Point

app = typer.Typer(
    help="Jobs: ls, get, watch, metrics, events, checkpoints, pause, resume, cancel.", no_args_is_help=True
)


class Kind(StrEnum):
    """Kinds of job."""

    SFT = "sft"
    RL = "rl"
    EVAL = "eval"


JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]


@app.command("ls")
def ls(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only jobs in this state, as `started`.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only jobs of this kind.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many, newest first.")] = 20,
    fmt: Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    with open_client(ctx) as client:
        jobs = client.jobs(state=state, kind=kind, limit=limit)
    if fmt is Format.JSON:
        return output.print_json(jobs)
    rows = [
        [j.id, j.name.rpartition("/")[2], j.kind or "-", j.state, _steps(j), output.age(j.created_at), j.model or ""]
        for j in jobs
    ]
    output.print_table(("id", "name", "kind", "state", "step", "age", "model"), rows, shrink="model")
    if not jobs:
        output.hint("no such jobs" if state or kind else "no jobs yet: synthctl submit FILE")
    return None


@app.command("get")
def get(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Show one job."""
    with open_client(ctx) as client:
        found = client.job(job)
    if fmt is Format.JSON:
        return output.print_json(found)
    output.print_pairs(_pairs(found))
    for warning in found.warnings:
        output.warn(warning)
    for warned in found.warned.values():
        output.warn(warned.problem.text())
    output.show_problems(found.problems, label="problem")
    return None


@app.command("watch")
def watch(
    ctx: typer.Context,
    job: JobArgument,
    after: Annotated[int, typer.Option(min=0, help="Begin behind this event's seq, as -o json prints it.")] = 0,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds; then exit 124. The job goes on.")] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Follow a job to its end; the exit code is its outcome.

    `-o json` prints one event a line, each once and in order. Ctrl-C stops watching (exit 130) and leaves the job.
    """
    from synth.cli.tui.follow import FollowOptions, follow_job

    with open_client(ctx) as client:
        raise typer.Exit(follow_job(client, job, format=fmt, options=FollowOptions(timeout=timeout), after=after))


@app.command("cancel")
def cancel(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Ask a job to stop. Cancelling twice is cancelling once; a job that has ended is an error."""
    with open_client(ctx) as client:
        found = client.cancel(job)
    if fmt is Format.JSON:
        return output.print_json(found)
    return output.message(f"{found.id} {found.state}")


@app.command("pause")
def pause(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Ask a job that runs to let go of its workers for a while. Pausing twice is pausing once."""
    with open_client(ctx) as client:
        found = client.pause(job)
    if fmt is Format.JSON:
        return output.print_json(found)
    output.message(f"{found.id} {found.state}")
    return output.hint(f"to go on with it: synthctl jobs resume {found.id}")


@app.command("resume")
def resume(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """Go on with a paused job from its last checkpoint."""
    with open_client(ctx) as client:
        found = client.resume(job)
    if fmt is Format.JSON:
        return output.print_json(found)
    output.message(f"{found.id} goes on")
    return output.hint(f"watch it with: synthctl jobs watch {found.id}")


@app.command("checkpoints")
def checkpoints(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """List the checkpoints that a job keeps, newest first: each can be chatted with, evaluated and trained from."""
    from synth.cli.tui.progress import HEADLINES

    with open_client(ctx) as client:
        found = client.checkpoints(job)
    if fmt is Format.JSON:
        return output.print_json(found)
    rows = [
        [
            c.model,
            str(c.step),
            output.size(c.bytes),
            output.age(c.created_at),
            "  ".join(f"{n}={output.number(c.values[n])}" for n in HEADLINES if n in c.values),
        ]
        for c in found
    ]
    output.print_table(("model", "step", "size", "age", "values"), rows, shrink="values")
    if not found:
        output.hint("none yet, or all have expired")
    return None


@app.command("events")
def events(
    ctx: typer.Context,
    job: JobArgument,
    after: Annotated[int, typer.Option(min=0, help="Only events behind this seq.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; all without it.")] = None,
    type: Annotated[str | None, typer.Option(help="Only this type, as `train.step`.")] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Print the log of a job as it is now; `-o json` prints one event a line."""
    from synth.api.schemas import EventView
    from synth.cli.tui.progress import describe

    rows: list[list[str]] = []
    left = limit
    with open_client(ctx) as client:
        while left is None or left > 0:
            page = client.events(job, after=after)
            wanted: list[EventView] = [e for e in page.events if type in (None, e.type)][:left]
            for event in wanted:
                if fmt is Format.JSON:
                    output.print_json_line(event)
                else:
                    said = describe(event) or ""
                    rows.append([str(event.seq), f"{event.time.astimezone():%H:%M:%S}", event.type, said])
            left = None if left is None else left - len(wanted)
            if not page.more or not page.events:
                break
            after = page.events[-1].seq
    if fmt is Format.TABLE:
        output.print_table(("seq", "time", "type", "what"), rows, shrink="what")


@app.command("metrics")
def metrics(
    ctx: typer.Context,
    job: JobArgument,
    name: Annotated[str | None, typer.Option(help="Only this metric, step by step.")] = None,
    after_step: Annotated[int | None, typer.Option(min=0, help="Only later steps.")] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """What a job reported at each step: a summary, or with --name one metric step by step."""
    with open_client(ctx) as client:
        points = client.metrics(job, name=name, after_step=after_step)
    if fmt is Format.JSON:
        return output.print_json({"points": points})
    if name is not None:
        return output.print_table(("step", name), [[str(p.step), output.number(p.value)] for p in points])
    return _print_summary(points)


def _print_summary(points: list[Point]) -> None:
    series: dict[str, list[float]] = {}
    for p in points:
        series.setdefault(p.name, []).append(float("nan") if p.value is None else p.value)
    rows = [
        [n, output.number(v[0]), output.number(v[-1]), output.number(min(v)), output.number(max(v)), _sparkline(v)]
        for n, v in sorted(series.items())
    ]
    output.print_table(("metric", "first", "last", "min", "max", "course"), rows, shrink="course")
    if not rows:
        output.hint("no values yet")


def _sparkline(values: list[float]) -> str:
    return output.sparkline(values, width=24)


def _steps(job: Job) -> str:
    return "-" if not job.step else f"{job.step}/{job.steps}" if job.steps else str(job.step)


def _pairs(job: Job) -> list[tuple[str, str]]:
    from synth.cli.tui.progress import HEADLINES

    waiting = job.waiting
    pairs = [
        ("id", job.id),
        ("name", job.name),
        ("kind", job.kind or ""),
        ("state", job.state),
        ("step", _steps(job) if job.step else ""),
        ("attempt", str(job.attempt) if (job.attempt or 0) > 1 else ""),
        ("source", job.source_model or ""),
        ("stand-in", f"{job.stand_in} runs in its place" if job.stand_in else ""),
        ("model", job.model or ""),
        ("created", _moment(job.created_at)),
        ("ended", _moment(job.ended_at)),
        ("took", _took(job)),
        ("waiting", f"for {waiting.need} in pool {waiting.pool}, position {waiting.position}" if waiting else ""),
        ("rollouts", ", ".join(f"{n} {what}" for what, n in msgspec.structs.asdict(job.rollouts).items() if n)),
        ("values", "  ".join(f"{n}={output.number(job.values[n])}" for n in HEADLINES if n in job.values)),
        ("evaluation", "  ".join(f"{n}={output.number(v)}" for n, v in (job.eval or {}).items())),
        ("tags", "  ".join(f"{k}={v}" for k, v in job.tags.items())),
    ]
    return [(label, text) for label, text in pairs if text]


def _moment(moment: object) -> str:
    from datetime import datetime

    if not isinstance(moment, datetime):
        return ""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({output.age(moment)} ago)"


def _took(job: Job) -> str:
    if job.created_at is None or job.ended_at is None:
        return ""
    return output.duration((job.ended_at - job.created_at).total_seconds())

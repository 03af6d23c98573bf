"""`synthctl jobs metrics | checkpoints`: what a job measured, and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.jobs.options import JobArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

if TYPE_CHECKING:
    from synth.api.schemas import Point


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

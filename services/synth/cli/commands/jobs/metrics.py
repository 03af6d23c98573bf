"""`synthctl jobs metrics | checkpoints`: the metrics of a job, and the checkpoints that it keeps."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.jobs.listing import job_name
from synth.cli.commands.jobs.options import JobArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Cell, Format, Output
from synth.console.errors import UsageProblem

if TYPE_CHECKING:
    from synth.api.schemas import Checkpoint, Point
    from synth.client import Client

_PLOT_HEIGHT = 14
#: Names of metrics in a message; a run has dozens.
_NAMED = 8
#: Bars in a metric's curve, if the terminal is wide enough.
_COURSE = 24


def metrics(
    ctx: typer.Context,
    job: JobArgument,
    name: Annotated[
        list[str] | None, typer.Option(metavar="METRIC", help="Only this metric, step by step; repeatable.")
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw curves: of --name, else of the headline metrics.")] = False,
    after_step: Annotated[int | None, typer.Option(min=0, help="Only later steps.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write them there: .png and .svg curves, .csv or .json all values."),
    ] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Show a job's metrics: a summary, with --name one metric step by step, with --plot curves."""
    if out is not None:
        from synth.cli.figures.files import check_suffix

        check_suffix(out)
    with open_client(ctx) as client:
        points = _points(client, job, name or [], after_step)
        title = f"{job_name(client.jobs.get(job))}  {job}" if out is not None else ""
    if out is not None and points:
        return _save(points, out, name, title=title)
    if fmt is Format.JSON:
        if plot:
            raise UsageProblem("--plot draws, and -o json prints data", fix="leave one of them out")
        return output.print_json({"points": points})
    if not points:
        return output.hint("no values yet" if after_step is None else f"no values after step {after_step} yet")
    if plot:
        return _print_plots(points, name or _headlines(points))
    if name:
        return _print_steps(points, name)
    return _print_summary(points)


def checkpoints(ctx: typer.Context, job: JobArgument, fmt: Output = Format.TABLE) -> None:
    """List the checkpoints that a job keeps, newest first: each can be chatted with, evaluated and trained from.

    evaluation is the mean reward of that step's evaluation, if it had one.
    """
    from synth.cli.tui.progress import EVALUATION, HEADLINES

    with open_client(ctx) as client:
        kept = client.jobs.checkpoints(job)
        evaluated = client.jobs.metrics(job, name=EVALUATION) if fmt is Format.TABLE else []
    if fmt is Format.JSON:
        return output.print_json(kept)
    best = max(evaluated, key=lambda p: p.value, default=None)
    rows = [
        [
            c.model,
            str(c.step),
            output.size(c.bytes),
            output.age(c.created_at),
            _evaluation(c, best),
            output.named_values((n, c.values[n]) for n in HEADLINES if n in c.values),
        ]
        for c in kept
    ]
    columns = ["model", "step", "size", "age", "evaluation", "values"]
    if not evaluated:
        at = columns.index("evaluation")
        columns.pop(at)
        rows = [row[:at] + row[at + 1 :] for row in rows]
    output.print_table(columns, rows, wrap="values")
    if not kept:
        return output.hint("none yet, or all have expired")
    if best is not None and not any(c.values.get(EVALUATION) == best.value for c in kept):
        where = "of the source model" if best.step == 0 else f"of step {best.step}, whose checkpoint is not kept"
        output.hint(f"the best evaluation, {output.number(best.value)}, is that {where}")
    return None


def _evaluation(checkpoint: Checkpoint, best: Point | None) -> str:
    from synth.cli.tui.progress import EVALUATION

    if EVALUATION not in checkpoint.values:
        return "-"
    value = checkpoint.values[EVALUATION]
    return Cell(output.number(value) + (" best" if best is not None and value == best.value else ""), value)


def _points(client: Client, job: str, names: list[str], after_step: int | None) -> list[Point]:
    """Return the points of the named metrics, or of all. Raises `UsageProblem` for an unknown name."""
    if not names:
        return client.jobs.metrics(job, after_step=after_step)
    series = {name: client.jobs.metrics(job, name=name, after_step=after_step) for name in dict.fromkeys(names)}
    if not all(series.values()):
        known = _ordered({p.name for p in client.jobs.metrics(job)})
        unknown = next((name for name in series if known and name not in known), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, known, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"synthctl jobs metrics {job} lists them"
            raise UsageProblem(f"{job} has no metric {unknown!r}", expected=_some(known), fix=fix, where="--name")
    return [point for points in series.values() for point in points]


def _some(names: list[str]) -> str:
    more = f", or {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"one of {', '.join(names[:_NAMED])}{more}"


def _ordered(names: Iterable[str]) -> list[str]:
    """Sort names of metrics: the headlines first, then measures of evaluations, then the rest."""
    from synth.cli.tui.progress import EVALUATION, HEADLINES

    first = [HEADLINES[0], EVALUATION, *HEADLINES[1:]]
    return sorted(names, key=lambda n: (first.index(n) if n in first else len(first), not n.startswith("eval."), n))


def _save(points: list[Point], out: Path, names: list[str] | None, *, title: str) -> None:
    from synth.cli.figures.files import save_points

    all_names = list(dict.fromkeys(names or _ordered({p.name for p in points})))
    try:
        save_points(points, out, names=all_names, drawn=names or _headlines(points), title=title)
    except OSError as error:
        raise UsageProblem(f"{out} cannot be written: {error.strerror}", where="--out") from error
    output.message(f"wrote {out}")


def _headlines(points: list[Point]) -> list[str]:
    """Return the headline metrics that the job has; if it has none of them, its first metric."""
    from synth.cli.tui.progress import EVALUATION, HEADLINES

    known = {p.name for p in points}
    return [n for n in (HEADLINES[0], EVALUATION, *HEADLINES[1:3]) if n in known] or sorted(known)[:1]


def _print_plots(points: list[Point], names: list[str]) -> None:
    from synth.cli.tui.curves import Curve, print_curves

    for name in dict.fromkeys(names):
        of_name = [p for p in points if p.name == name]
        curve = Curve("*", [p.step for p in of_name], [p.value for p in of_name])
        print_curves([curve], title=name, height=_PLOT_HEIGHT)


def _print_steps(points: list[Point], names: list[str]) -> None:
    from synth.cli.figures.files import by_step

    names = list(dict.fromkeys(names))
    rows = [[str(step), *(output.number(at[n]) if n in at else "-" for n in names)] for step, at in by_step(points)]
    output.print_table(("step", *names), rows)


def _print_summary(points: list[Point]) -> None:
    series: dict[str, list[float]] = {}
    for p in points:
        series.setdefault(p.name, []).append(p.value)
    columns = ("metric", "first", "last", "min", "max")
    ordered = [(n, series[n]) for n in _ordered(series)]
    rows = [
        [n, output.number(v[0]), output.number(v[-1]), output.number(min(v)), output.number(max(v))] for n, v in ordered
    ]
    room = output.room_beside(columns, rows) if output.is_terminal() else _COURSE
    width = min(room, _COURSE) if room >= len("course") else _COURSE
    courses = [output.sparkline(v, width=width) for _, v in ordered]
    output.print_table((*columns, "course"), [[*row, course] for row, course in zip(rows, courses, strict=True)])

"""`synthctl jobs compare`: what differs between jobs, and what became of each."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.commands.jobs.listing import job_name, queued, ran, steps_done
from synth.cli.commands.jobs.options import OptionalJobsArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Cell, Format, Output
from synth.console.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synth.api.schemas import JobWithConfig, Point
    from synth.cli.comparison.configs import Difference
    from synth.cli.comparison.figures import Figure
    from synth.cli.comparison.paired import Measured
    from synth.client import Client

_PLOT_HEIGHT = 12
_BETTER = " *"
#: The number of colours that a reader can tell apart.
_MOST_JOBS = 6


@dataclass(frozen=True)
class _Compared:
    """A job, its metrics, and the letter that stands for it."""

    mark: str
    job: JobWithConfig
    points: list[Point]
    figures: dict[str, Figure]

    def points_of(self, name: str) -> list[Point]:
        return [p for p in self.points if p.name == name]


def compare(
    ctx: typer.Context,
    jobs: OptionalJobsArgument = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Also the jobs with this tag; repeatable.")
    ] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Show what differs between jobs: their settings, their final and best figures, their curves over each other.

    Settings have the names of a job file. `*` marks the better run of each figure. The last evaluations of the jobs are
    compared on the seeds that both have, as `eval compare` does it.
    """
    from synth.cli.comparison.configs import differences, settings_of
    from synth.cli.comparison.figures import drawn_metrics, figures

    jobs = list(jobs or [])
    if tag:
        with open_client(ctx) as client:
            tagged = [*client.jobs.list(tags=tag, limit=_MOST_JOBS + 1)]
        jobs += [job.id for job in reversed(tagged) if job.id not in jobs]
    if not 2 <= len(jobs) <= _MOST_JOBS:
        of_tag = f" with the tag {', '.join(tag)}" if tag else ""
        which = f"more than {_MOST_JOBS} jobs" if len(jobs) > _MOST_JOBS else f"{len(jobs)} job{'s' * (len(jobs) != 1)}"
        raise UsageProblem(which + of_tag, expected=f"two to {_MOST_JOBS} jobs", fix="name them by their ids")
    if repeated := next((job for job in jobs if jobs.count(job) > 1), None):
        raise UsageProblem(f"{repeated} is named twice", expected="different jobs")
    compared: list[_Compared] = []
    with open_client(ctx) as client:
        for mark, id in zip(string.ascii_uppercase, jobs, strict=False):
            job, points = client.jobs.get(id), client.jobs.metrics(id)
            compared.append(_Compared(mark, job, points, figures(points, kind=job.kind)))
        evaluated = _evaluations(client, compared)
    differing = differences(settings_of([c.job for c in compared]))
    drawn = drawn_metrics([c.figures for c in compared], [c.job.kind for c in compared])
    if fmt is Format.JSON:
        return output.print_json(_as_data(compared, differing, drawn, evaluated))
    _print_jobs(compared)
    _print_rows("jobs", compared, _facts(compared))
    figure_rows = _figures(compared)
    _print_rows("figures", compared, figure_rows)
    if output.is_terminal() and any(str(value).endswith(_BETTER) for _, values in figure_rows for value in values):
        output.hint("* the better run")
    if evaluated:
        _print_evaluations(evaluated)
    unresolved = [c.job.id for c in compared if c.job.resolved is None]
    if unresolved:
        output.warn(f"{', '.join(unresolved)}: never validated, so that there are no settings to compare")
    elif differing:
        _print_rows("settings that differ", compared, _settings(differing))
    else:
        output.print_line("settings: nothing differs" if output.is_terminal() else "settings\tnothing differs")
    for name in drawn:
        _print_curves(name, compared)
    return None


def _evaluations(client: Client, compared: Sequence[_Compared]) -> list[Measured]:
    """Return the last evaluation of each job, seed by seed; [] if fewer than two jobs have one."""
    from synth.cli.comparison.paired import Measured
    from synth.cli.evaluation.rewards import find_evaluation

    measured: list[Measured] = []
    for c in compared:
        # Reading all events of a job takes long, so only jobs with evaluations are read.
        evaluation = find_evaluation(client, c.job.id) if c.points_of("eval.reward_mean") or c.job.eval else None
        if evaluation is not None:
            measured.append(Measured(evaluation.title, evaluation.by_seed))
    return measured if len(measured) > 1 else []


def _print_evaluations(evaluated: Sequence[Measured]) -> None:
    from synth.cli.comparison.paired import against_first
    from synth.cli.comparison.table import print_paired

    print_paired(evaluated, against_first(evaluated), heading="evaluation", unit="seed")
    output.print_line("")


def _as_data(
    compared: Sequence[_Compared],
    differing: Sequence[Difference],
    drawn: Sequence[str],
    evaluated: Sequence[Measured],
) -> dict[str, Any]:
    from synth.cli.comparison.paired import against_first

    ids = [c.job.id for c in compared]
    paired = zip(evaluated, against_first(evaluated), strict=True) if evaluated else ()
    return {
        "jobs": [
            {
                "id": c.job.id,
                "name": c.job.name,
                "kind": c.job.kind,
                "state": c.job.state,
                "step": c.job.step,
                "linked_job_id": c.job.linked_job_id,
                "times": c.job.times,
            }
            for c in compared
        ],
        "differences": [{"key": d.key, "values": dict(zip(ids, d.values, strict=True))} for d in differing],
        "figures": {c.job.id: c.figures for c in compared},
        "evaluations": [
            {"evaluation": m.title, "mean": m.mean, "interval": m.interval, "difference": difference}
            for m, difference in paired
        ],
        "curves": {
            name: {c.job.id: [[p.step, p.value] for p in c.points_of(name)] for c in compared} for name in drawn
        },
    }


def _facts(compared: Sequence[_Compared]) -> list[tuple[str, list[str]]]:
    facts: list[tuple[str, Callable[[JobWithConfig], str]]] = [
        *([] if output.is_terminal() else [("name", job_name)]),
        ("kind", lambda j: j.kind or "-"),
        ("state", lambda j: j.state),
        ("step", steps_done),
        ("continues", lambda j: j.linked_job_id or "-"),
        ("queued", queued),
        ("ran", lambda j: ran(j) or "-"),
        ("trained tokens", lambda j: output.number(j.trained_tokens) if j.trained_tokens else "-"),
        ("rollouts", lambda j: output.number(j.rollouts.completed) if j.rollouts.completed else "-"),
        ("rollouts failed", lambda j: output.number(j.rollouts.failed) if j.rollouts.failed else "-"),
    ]
    rows = [(label, [text(c.job) for c in compared]) for label, text in facts]
    return [(label, values) for label, values in rows if any(value != "-" for value in values)]


def _figures(compared: Sequence[_Compared]) -> list[tuple[str, list[str]]]:
    from synth.cli.comparison.figures import COMPARED, better_runs

    rows: list[tuple[str, list[str]]] = []
    for name in COMPARED:
        row = [c.figures.get(name) for c in compared]
        if not any(row):
            continue
        best = better_runs(row, name, kinds=[c.job.kind for c in compared])
        rows.append((name, [_final(f, marked=i in best) for i, f in enumerate(row)]))
        if any(f is not None and f.best is not None for f in row):
            rows.append((Cell("  best @step", f"{name} best @step"), [_best(f) for f in row]))
    return rows


def _final(figure: Figure | None, *, marked: bool) -> str:
    if figure is None:
        return "-"
    return Cell(f"{output.number(figure.final)}{_BETTER * marked}", figure.final)


def _best(figure: Figure | None) -> str:
    if figure is None or figure.best is None:
        return "-"
    return Cell(f"{output.number(figure.best)} @{figure.best_step}", f"{figure.best} @{figure.best_step}")


def _settings(differing: Sequence[Difference]) -> list[tuple[str, list[str]]]:
    from synth.cli.tui.explain import format_value

    return [(d.key, [format_value(value) for value in d.values]) for d in differing]


def _print_jobs(compared: Sequence[_Compared]) -> None:
    """On a terminal, which job each letter stands for: their ids need too much room above columns."""
    from rich.text import Text

    from synth.cli.tui.curves import colour_of

    if not output.is_terminal():
        return
    for i, c in enumerate(compared):
        line = Text.assemble((f"{c.mark}  ", f"bold {colour_of(i)}"), f"{c.job.id}  {job_name(c.job)}")
        output.out().print(line)
    output.out().print("")


def _print_rows(title: str, compared: Sequence[_Compared], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    from rich.text import Text

    from synth.cli.tui.curves import colour_of
    from synth.cli.tui.tables.side_by_side import SideBySide

    if not rows:
        return
    if not output.is_terminal():
        output.print_table((title, *(c.job.id for c in compared)), [[label, *values] for label, values in rows])
        output.print_line("")
        return
    styles = [colour_of(i) for i in range(len(compared))]
    output.out().print(Text(title, style="bold"))
    output.out().print(SideBySide([c.mark for c in compared], rows, styles), "")


def _print_curves(name: str, compared: Sequence[_Compared]) -> None:
    from synth.cli.tui.curves import Curve, print_curves

    curves = [
        Curve(c.mark, [p.step for p in c.points_of(name)], [p.value for p in c.points_of(name)]) for c in compared
    ]
    print_curves(curves, title=name, height=_PLOT_HEIGHT)

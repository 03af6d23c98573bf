"""The live view of a job: what `Progress` knows, drawn for a terminal of any width."""

from __future__ import annotations

import time

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from synth.cli.tui.output import duration, number, sparkline, style_of
from synth.cli.tui.progress import STAGES, Progress
from synth.cli.tui.series import Series
from synth.jobs.lifecycle import State

_LABEL = 12
# A terminal shows Ctrl-C as two characters behind the last line. Were that line full, they would begin a new one, and
# the drawing would go on a line too low.
_KEPT_FREE = 2
_FIGURES = (
    ("tokens_per_second", "tokens/s"),
    ("staleness_mean", "staleness"),
    ("ppo_kl", "kl"),
    ("entropy", "entropy"),
    ("grad_norm", "grad norm"),
    ("validation_loss", "validation loss"),
    ("lr", "lr"),
)
_ENDINGS = {State.FAILED: "✗ failed", State.REJECTED: "✗ rejected", State.CANCELLED: "■ cancelled"}


class JobView:
    """Draws a job anew at every refresh."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width - _KEPT_FREE, 110)
        yield self._heading(width)
        yield self._stages(width)
        yield from self._figures(width)
        p = self.progress
        if p.state is State.PAUSED:
            yield _row("go on", Text(f"synthctl jobs resume {p.job_id}"), width)
        if p.waiting and not p.over:
            yield _row("waiting", Text(p.waiting, style="yellow"), width)
        if p.away:
            yield _row("away", Text(f"{p.away}; looking for the cluster", style="yellow"), width)
        if p.warning:
            yield _row("warning", Text(p.warning, style="yellow"), width)

    def _heading(self, width: int) -> Table:
        p = self.progress
        name = Text(p.name.rpartition("/")[2] or p.job_id, style="bold")
        if p.name:
            name.append(f"  {p.job_id}", style="dim")
        if p.source:
            name.append(f"  from {p.source}", style="dim")
        right = Text(str(p.state.value if p.state else "…"), style=style_of(p.state or ""))
        if p.attempt > 1:
            right.append(f" · attempt {p.attempt}", style="yellow")
        if p.created_at is not None:
            right.append(f" · {duration(self._until() - p.created_at)}", style="dim")
        grid = Table.grid(expand=False, padding=(0, 2, 0, 0))
        grid.width = width
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        grid.add_column(justify="right", no_wrap=True)
        grid.add_row(name, right)
        return grid

    def _stages(self, width: int) -> Text:
        p = self.progress
        line = Text(no_wrap=True)
        pending = not p.over
        for label, fact in STAGES:
            if fact in p.reached or p.trained > 0:
                line.append("✓ ", style="green").append(f"{label}  ")
            elif pending:
                frame = self._spinner.render(time.monotonic())
                line.append_text(frame if isinstance(frame, Text) else Text("…")).append(f" {label}  ", style="cyan")
                pending = False
            else:
                line.append(f"· {label}  ", style="dim")
        if p.state is State.SUCCEEDED:
            line.append("✓ ", style="green").append("succeeded")
        elif p.state is State.PAUSED:
            line.append("⏸ paused", style="yellow")
        elif p.state is not None and p.state in _ENDINGS:
            line.append(_ENDINGS[p.state], style=style_of(p.state))
        elif pending:
            frame = self._spinner.render(time.monotonic())
            doing = str(p.state) if p.state in (State.CANCELLING, State.PAUSING) else "running"
            line.append_text(frame if isinstance(frame, Text) else Text("…")).append(f" {doing}", style="cyan")
        else:
            line.append("· done", style="dim")
        line.truncate(width, overflow="ellipsis")
        return line

    def _figures(self, width: int) -> list[Table]:
        p = self.progress
        rows: list[Table] = []
        if p.steps and not (p.over and p.trained == 0):
            unit = "iteration" if p.kind == "rl" else "step"
            saved = f"saved to {p.step}" if p.trained > p.step and not p.over else ""
            note = ", ".join(part for part in (saved, self._left()) if part)
            rows.append(_bar(unit, p.trained, p.steps, width, note=note))
            if p.shown > p.trained and not p.over:
                rows.append(_row("", Text(f"up to step {p.shown} a second time", style="dim"), width))
        if (batch := p.collecting) and not p.over and p.state is not State.PAUSED:
            mode, done, wanted = batch
            failed = f"{p.failed} failed" if p.failed else ""
            rows.append(_bar("evaluation" if mode == "eval" else "rollouts", done, wanted, width, note=failed))
        # The result of an evaluation job is printed as a table of its own.
        at = "" if p.evaluated_step is None else f"at step {p.evaluated_step}"
        curves = [("reward", p.reward, ""), ("evaluation", Series() if p.kind == "eval" else p.evaluation, at)]
        curves.append(("loss", p.loss, ""))
        rows += [_spark(label, series, width, note=note) for label, series, note in curves if series.values]
        if shown := [(n, p.values[key]) for key, n in _FIGURES if key in p.values]:
            rows.append(_row("now", _pairs(shown, width), width))
        if p.model:
            rows.append(_row("model", Text(p.model, style="bold green", overflow="fold"), width))
        return rows

    def _until(self) -> float:
        p = self.progress
        ends = [t for fact, t in p.reached.items() if p.over and fact != "job.created"]
        return max(ends) if ends else time.time()

    def _left(self) -> str:
        left = self.progress.seconds_left
        return "" if left is None or self.progress.over else f"{duration(left)} left"


def _row(label: str, value: Text | Table | ProgressBar, width: int) -> Table:
    grid = Table.grid(padding=0)
    grid.width = width
    grid.add_column(width=_LABEL, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(Text(label, style="dim"), value)
    return grid


def _bar(label: str, done: int, of: int, width: int, *, note: str = "") -> Table:
    counts = f"{done}/{of}"
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    room = max(8, min(50, width - _LABEL - len(counts) - len(note) - 6))
    grid.add_row(ProgressBar(total=of, completed=min(done, of), width=room), counts, note)
    return _row(label, grid, width)


def _spark(label: str, series: Series, width: int, *, note: str = "") -> Table:
    """A series as bars from the run's beginning on, its last value, its lowest and highest. note: said behind them."""
    room = max(8, min(50, width - _LABEL - 34))
    values = series.values
    text = Text(sparkline(values, width=room).ljust(min(room, len(values))), style="cyan")
    text.append(f"  {number(series.last)}", style="bold")
    if len(values) > 1:
        text.append(f"  {number(series.low)} … {number(series.high)}", style="dim")
    if note:
        text.append(f"  {note}", style="dim")
    return _row(label, text, width)


def _pairs(values: list[tuple[str, float]], width: int) -> Text:
    """`name value` side by side, a line being broken only between two of them."""
    text, used = Text(overflow="fold"), 0
    for name, value in values:
        shown = number(value)
        length = len(name) + 1 + len(shown)
        if used and used + 3 + length > width - _LABEL:
            text.append("\n")
            used = 0
        elif used:
            text.append("   ")
            used += 3
        text.append(f"{name} ", style="dim").append(shown)
        used += length
    return text

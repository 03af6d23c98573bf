"""The live view of a job: what `Progress` knows, drawn for a terminal of any width."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from synth.cli.tui.output import duration, number, sparkline, style_of
from synth.cli.tui.progress import STAGES, Progress
from synth.cli.tui.series import Series
from synth.cli.tui.tables.labelled import Labelled
from synth.cli.tui.tables.rows import GAP, flow
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
    ("lr", "lr"),
)
_ENDINGS = {State.FAILED: "✗ failed", State.REJECTED: "✗ rejected", State.CANCELLED: "■ cancelled"}


class JobView:
    """Draws a job at every refresh."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width - _KEPT_FREE, 110)
        yield self._heading(width)
        yield self._stages(width)
        for row in (*self._figures(width), *self._notes()):
            yield Constrain(row, width)

    def _notes(self) -> Iterator[Labelled]:
        """Yield the job's present problems, and how to fix them."""
        p = self.progress
        if p.state is State.PAUSED:
            yield _row("go on", Text(f"synthctl jobs resume {p.job_id}"))
        if p.waiting and not p.over:
            yield _row("waiting", Text(p.waiting, style="yellow"))
        if p.away:
            yield _row("away", Text(f"{p.away}; looking for the cluster", style="yellow"))
        if p.warning:
            yield _row("warning", Text(p.warning, style="yellow"))

    def _heading(self, width: int) -> Table | Text:
        p = self.progress
        left = [Text(p.name.rpartition("/")[2] or p.job_id, style="bold")]
        if p.name:
            left.append(Text(p.job_id, style="dim"))
        if p.source:
            left.append(Text(f"from {p.source}", style="dim"))
        right = Text(str(p.state.value if p.state else "…"), style=style_of(p.state or ""))
        if p.attempt > 1:
            right.append(f" · attempt {p.attempt}", style="yellow")
        if times := self._times():
            right.append(f" · {times}", style="dim")
        if sum(part.cell_len + GAP for part in left) + right.cell_len > width:
            return flow([*left, right], width)
        grid = Table.grid(expand=False, padding=(0, GAP, 0, 0))
        grid.width = width
        grid.add_column(ratio=1, no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_row(flow(left, width), right)
        return grid

    def _stages(self, width: int) -> Text:
        p = self.progress
        stages: list[Text] = []
        pending = not p.over
        for label, fact in STAGES:
            if fact in p.reached or p.trained > 0:
                stages.append(Text("✓ ", style="green").append(label, style="default"))
            elif pending:
                stages.append(self._under_way(label))
                pending = False
            else:
                stages.append(Text(f"· {label}", style="dim"))
        if p.state is State.SUCCEEDED:
            stages.append(Text("✓ ", style="green").append("succeeded", style="default"))
        elif p.state is State.PAUSED:
            stages.append(Text("⏸ paused", style="yellow"))
        elif p.state is not None and p.state in _ENDINGS:
            stages.append(Text(_ENDINGS[p.state], style=style_of(p.state)))
        elif pending:
            stages.append(self._under_way(str(p.state) if p.state in (State.CANCELLING, State.PAUSING) else "running"))
        else:
            stages.append(Text("· done", style="dim"))
        return flow(stages, width)

    def _under_way(self, label: str) -> Text:
        frame = self._spinner.render(time.monotonic())
        # Rich declares a frame as any renderable.
        return (frame.copy() if isinstance(frame, Text) else Text("…")).append(f" {label}", style="cyan")

    def _figures(self, width: int) -> list[Labelled]:
        p = self.progress
        rows: list[Labelled] = []
        if p.steps and not (p.over and p.trained == 0):
            unit = "iteration" if p.kind == "rl" else "step"
            saved = f"saved to {p.step}" if p.trained > p.step and not p.over else ""
            note = ", ".join(part for part in (saved, self._left()) if part)
            rows.append(_bar(unit, p.trained, p.steps, width, note=note))
            if p.shown > p.trained and not p.over:
                rows.append(_row("", Text(f"up to step {p.shown} a second time", style="dim")))
        if (batch := p.collecting) and not p.over and p.state is not State.PAUSED:
            mode, done, wanted = batch
            failed = f"{p.failed} failed" if p.failed else ""
            rows.append(_bar("evaluating" if mode == "eval" else "rollouts", done, wanted, width, note=failed))
        # The result of an evaluation job is printed as a table of its own.
        at = "" if p.evaluated_step is None else f"at step {p.evaluated_step}"
        curves = [("reward", p.reward, ""), ("evaluation", Series() if p.kind == "eval" else p.evaluation, at)]
        curves += [("loss", p.loss, ""), ("validation", p.validation, "of the loss")]
        rows += [_spark(label, series, width, note=note) for label, series, note in curves if series.values]
        if shown := [(n, p.values[key]) for key, n in _FIGURES if key in p.values]:
            pairs = [_named(name, value) for name, value in shown]
            rows.append(_row("last step", flow(pairs, width - _LABEL)))
        if p.model:
            rows.append(_row("model", Text(p.model, style="bold green")))
        return rows

    def _times(self) -> str:
        """Return the job's time of running and of waiting; "" if neither is known."""
        times, now = self.progress.clock.times, datetime.now(UTC)
        queued, ran = times.queued(now), times.ran(now)
        parts = [f"ran {duration(ran)}"] if self.progress.clock.runs else []
        # A worker that is free takes a moment, too.
        parts += [f"queued {duration(queued)}"] if not parts or queued >= 1 else []
        return ", ".join(parts) if self.progress.reached else ""

    def _left(self) -> str:
        p = self.progress
        left, pace = p.seconds_left, p.pace
        if left is None or pace is None or p.over or not p.steps_seen:
            return ""
        # A step that takes longer than the earlier ones is late; it predicts nothing about the others.
        since = max(0.0, time.time() - p.steps_seen[-1][1])
        return f"about {duration(left - min(since, pace))} left"


def _named(name: str, value: float, style: str = "default") -> Text:
    return Text(f"{name} ", style="dim").append(number(value), style=style)


def _row(label: str, value: Text) -> Labelled:
    return Labelled(Text(label, style="dim"), value, _LABEL)


def _bar(label: str, done: int, of: int, width: int, *, note: str = "") -> Labelled:
    room = max(8, min(50, width - _LABEL - len(f"{done}/{of}") - len(note) - 2 * GAP))
    filled = round(room * min(done, of) / of)
    bar = Text("━" * filled, style="cyan").append("─" * (room - filled), style="dim")
    parts = [bar, Text(f"{done}/{of}"), *([Text(note, style="dim")] if note else [])]
    return _row(label, flow(parts, width - _LABEL))


def _spark(label: str, series: Series, width: int, *, note: str = "") -> Labelled:
    """Draw a series as bars since the run's beginning, with its last, lowest and highest value. note: follows them."""
    room = max(8, min(50, width - _LABEL - 34))
    parts = [Text(sparkline(series.values, width=room), style="cyan"), _named("now", series.last, "bold")]
    if len(series.values) > 1:
        parts += [_named("min", series.low), _named("max", series.high)]
    if note:
        parts.append(Text(note, style="dim"))
    return _row(label, flow(parts, width - _LABEL))

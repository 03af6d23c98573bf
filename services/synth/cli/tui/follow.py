"""Following a job to its end: a live view on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from synth.api.schemas import EventView, Job, JobWithConfig
from synth.cli.tui import output
from synth.cli.tui.output import Format
from synth.cli.tui.progress import Progress, describe_new, exit_code, failure
from synth.client import Client
from synth.console.errors import ExitCode
from synth.errors import Problem
from synth.jobs.lifecycle import State


@dataclass(frozen=True, kw_only=True)
class FollowOptions:
    """The options of following a job. timeout: seconds, then `TimedOut`; None for no end.

    interval: seconds between looks where events cannot be streamed. patience: seconds that the cluster may be away.
    detaches: whether the job goes on after Ctrl-C.
    """

    timeout: float | None = None
    interval: float = 1.0
    patience: float = 600.0
    detaches: bool = True

    def follow(self, client: Client, job_id: str, *, after: int = 0, **outages: Any) -> Iterator[EventView]:
        """Follow a job. outages: who is called with them; without, they are reported on stderr."""
        outages = outages or {
            "on_away": self._say_away,
            "on_back": lambda seconds: output.message(f"the cluster is back after {output.duration(seconds)}"),
        }
        return client.jobs.follow(
            job_id, after=after, timeout=self.timeout, patience=self.patience, interval=self.interval, **outages
        )

    def _say_away(self, reason: str) -> None:
        output.warn(f"the cluster is away: {reason}; looking for it for {output.duration(self.patience)}")


def follow_job(
    client: Client,
    job_id: str,
    *,
    format: Format,
    options: FollowOptions,
    after: int = 0,
    emit: Callable[[str], None] = output.print_line,
) -> ExitCode:
    """Show a job until it ends; returns its outcome. Ctrl-C detaches: the job goes on.

    after: the sequence of the last event already seen. emit: prints a line of what happens, off a terminal.
    """
    progress = Progress(job_id)
    try:
        if format is Format.JSON:
            for event in options.follow(client, job_id, after=after):
                progress.apply(event)
                output.print_json_line(event)
        elif output.is_terminal():
            _follow_live(lambda **outages: options.follow(client, job_id, after=after, **outages), progress)
        else:
            _follow_lines(options.follow(client, job_id, after=after), progress, emit)
    except KeyboardInterrupt:
        if options.detaches:
            _detached(job_id, progress.state)
        return ExitCode.INTERRUPTED
    return _outcome(client, progress, format)


def wait_for_job(client: Client, job_id: str, *, options: FollowOptions) -> tuple[JobWithConfig, ExitCode]:
    """Wait for a job without showing it; the job as it ended, and its outcome. Ctrl-C detaches."""
    try:
        for _ in options.follow(client, job_id):
            pass
    except KeyboardInterrupt:
        job = client.jobs.get(job_id)
        if options.detaches:
            _detached(job_id, job.state)
        return job, ExitCode.INTERRUPTED
    job = client.jobs.get(job_id)
    return job, exit_code(job.state)


def _follow_live(follow: Callable[..., Iterator[EventView]], progress: Progress) -> None:
    from rich.live import Live

    from synth.cli.tui.view import JobView

    def away(reason: str) -> None:
        progress.away = reason

    def back(seconds: float) -> None:
        progress.away = ""

    view = JobView(progress)
    with Live(get_renderable=lambda: view, console=output.out(), refresh_per_second=8) as live:
        # A line about an outage beside the drawing would stand in its way.
        for event in follow(on_away=away, on_back=back):
            progress.apply(event)
        live.refresh()


#: After these no rollout of the batch fails any more.
_ENDS_OF_BATCHES = ("rollout.batch", "eval.completed", "rollout.blocked", "train.step", "job.paused")


def _follow_lines(events: Iterator[EventView], progress: Progress, emit: Callable[[str], None]) -> None:
    """Print a line for each event; repeats of the last line are counted instead.

    Rollouts that fail the same way are one line, and how many more there were when their batch is done.
    """
    last, repeats = "", 0
    alike: Counter[str] = Counter()
    for event in events:
        shown = progress.shown
        progress.apply(event)
        if what := failure(event):
            if progress.failures[what] > 1:
                alike[what] += 1
                continue
        elif event.type in _ENDS_OF_BATCHES or progress.over:
            for what, times in alike.items():
                more = "one more rollout" if times == 1 else f"{times} more rollouts"
                emit(f"          … {more} failed the same way: {what}")
            alike.clear()
        for line in describe_new(event, shown=shown):
            if line == last:
                repeats += 1
                continue
            if repeats:
                emit(f"          … {'once' if repeats == 1 else f'{repeats} times'} more")
            emit(f"{event.time.astimezone():%H:%M:%S}  {line}")
            last, repeats = line, 0


def _outcome(client: Client, progress: Progress, format: Format) -> ExitCode:
    job = client.jobs.get(progress.job_id)
    if format is Format.TABLE:
        show_outcome(job)
    return exit_code(job.state)


def show_outcome(job: Job) -> None:
    """Print to stderr why a job ended as it did, and what can be done with it."""
    if job.state == "succeeded":
        if job.reason:
            output.message(job.reason)
        _show_verdict(job)
        if job.model:
            output.hint(f"talk to it: synthctl chat {job.model}")
    elif job.state == "cancelled":
        output.message(f"{job.id} was cancelled")
    else:
        output.show_problems(job.problems or [Problem(what=f"{job.id} {job.state}" + _code(job))])
        _show_verdict(job)
        if job.state == State.FAILED and job.step:
            output.hint(f"go on from its last checkpoint: synthctl jobs resume {job.id}")


def _show_verdict(job: Job) -> None:
    if job.verdict:
        output.message(job.verdict.text())
        if job.verdict.next:
            output.hint(f"try next: {job.verdict.next}")


def _code(job: Job) -> str:
    return f" ({job.code})" if job.code else ""


def _detached(job_id: str, state: str | None) -> None:
    paused = state == State.PAUSED
    output.message(f"detached; {job_id} {'is paused' if paused else 'goes on'}")
    resume = f"  resume it: synthctl jobs resume {job_id}\n" if paused else ""
    output.hint(f"{resume}  watch it:  synthctl jobs watch {job_id}\n  cancel it: synthctl jobs cancel {job_id}")

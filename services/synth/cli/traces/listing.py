"""Traces in a table, and one as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from synth.api.traces import TraceDetail, TraceSummary
from synth.cli.tui.output import age, number, print_table
from synth.cli.tui.rollout.conversation import versions_text
from synth.cli.tui.rollout.lines import Line, print_lines
from synth.cli.tui.rollout.pictures import FetchImage
from synth.cli.tui.rollout.transcript import transcript_lines
from synth.console.plain_text import printable
from synth.judging.contract import Review

_COLUMNS = ("trace", "env", "seed", "reward", "outcome", "tokens", "calls", "age")


def print_traces(traces: Sequence[TraceSummary]) -> None:
    """Print a table."""
    print_table(_COLUMNS, [_cells(trace) for trace in traces])


def print_trace(trace: TraceDetail, fetch: FetchImage | None = None) -> None:
    """Print a trace. fetch: returns the images to draw; None draws none."""
    print_lines(_lines(trace), fetch)


def _cells(t: TraceSummary) -> list[str]:
    return [
        t.id,
        t.env_name or "-",
        str(t.seed),
        "-" if t.reward is None else number(t.reward),
        t.outcome.replace("_", " "),
        str(t.completion_tokens),
        str(t.calls),
        age(t.created_at),
    ]


def _lines(t: TraceDetail) -> Iterator[Line]:
    yield "trace", f"{t.id}, seed {t.seed}" + (f" of {t.env_name}" if t.env_name else "")
    reward = "none" if t.reward is None else number(t.reward)
    parts = [f"{name} {number(score)}" for name, score in _sources(t) if score is not None]
    yield "reward", f"{reward} ({', '.join(parts)})" if len(parts) > 1 else reward
    versions = f" by policy version {versions_text(t.versions)}" if t.versions else ""
    yield "sampled", f"{t.completion_tokens} tokens in {t.calls} calls{versions}, {t.seconds:.1f} s"
    if t.review is not None:
        if t.review.outcome is not None:
            yield from _review("judged", t.review.outcome)
        for n, event in enumerate(t.review.events, start=1):
            yield from _review(f"turn {n} judged", event)
    if t.transcript is None:
        yield "note", t.note
    else:
        yield from transcript_lines(t.transcript)


def _sources(t: TraceSummary) -> list[tuple[str, float | None]]:
    return [("environment", t.environment), ("events", t.judged_events), ("outcome", t.judged_outcome)]


def _review(label: str, review: Review) -> Iterator[Line]:
    yield label, number(review.total) + (f": {printable(review.summary)}" if review.summary else "")
    for name, criterion in review.criteria.items():
        score = f"{number(criterion.score)}: {criterion.reason}" if criterion.reason else number(criterion.score)
        yield f"  {name}", printable(score)

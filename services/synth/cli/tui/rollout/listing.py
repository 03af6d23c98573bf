"""Rollouts, a line each; on a narrow terminal a few lines each, so that nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

from synth.api.rollouts import RolloutSummary
from synth.cli.tui.output import Cell, age, duration, is_terminal, message, number, out, print_table
from synth.cli.tui.rollout.plain_text import printable

_COLUMNS = ("rollout", "seed", "reward", "outcome", "tokens", "calls", "policy", "tries", "took", "age")
_OUTCOMES = {"policy_failure": "policy failed"}
_GAP = 2


def print_rollouts(rollouts: Sequence[RolloutSummary]) -> None:
    """Print a table, and below it why rollouts failed, each reason once."""
    rows = [_cells(rollout) for rollout in rollouts]
    if not is_terminal() or _table_width(rows) <= out().width:
        print_table(_COLUMNS, rows)
    else:
        _print_blocks(rows)
    _print_reasons(rollouts)


def outcome_text(rollout: RolloutSummary) -> str:
    """How a rollout ended, in words."""
    return _OUTCOMES.get(rollout.outcome, rollout.outcome)


def versions_text(versions: tuple[int, int] | None) -> str:
    """The policy versions that sampled something: `3`, or `2-3`."""
    if versions is None:
        return "-"
    oldest, newest = versions
    return str(oldest) if oldest == newest else f"{oldest}-{newest}"


def short_id(rollout_id: str, job_id: str) -> str:
    """The id without its job's: `t3_17`."""
    return rollout_id.removeprefix(f"{job_id}_")


def _cells(r: RolloutSummary) -> list[str]:
    return [
        short_id(r.id, r.job_id),
        str(r.seed),
        "-" if r.reward is None else Cell(number(r.reward), r.reward),
        outcome_text(r),
        "-" if r.completion_tokens is None else str(r.completion_tokens),
        "-" if r.calls is None else str(r.calls),
        versions_text(r.versions),
        str(r.tries),
        "-" if r.seconds is None else Cell(_seconds(r.seconds), r.seconds),
        Cell(age(r.ended_at), r.ended_at.isoformat()),
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)


def _table_width(rows: Sequence[Sequence[str]]) -> int:
    widths = [max(len(cell) for cell in column) for column in zip(_COLUMNS, *rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def _print_blocks(rows: Sequence[Sequence[str]]) -> None:
    from rich.text import Text

    for name, *values in rows:
        out().print(Text(name, style="bold"))
        line = ""
        for label, value in zip(_COLUMNS[1:], values, strict=True):
            # A line is broken between two figures, never within one.
            pair = f"  {label} {value}"
            if line and len(line) + len(pair) > out().width:
                out().print(Text(line))
                line = ""
            line += pair
        out().print(Text(line))


def _print_reasons(rollouts: Sequence[RolloutSummary]) -> None:
    reasons: dict[str, list[str]] = {}
    for r in rollouts:
        if r.problem is not None:
            reasons.setdefault(printable(r.problem.what), []).append(short_id(r.id, r.job_id))
    for what, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        message(f"{shown}: {what}")

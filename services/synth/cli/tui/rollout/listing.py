"""Rollouts in a table, and why some failed."""

from __future__ import annotations

from collections.abc import Sequence

from synth.api.rollouts import RolloutSummary
from synth.cli.tui.output import age, message, number, print_table, seconds
from synth.cli.tui.rollout.conversation import versions_text
from synth.console.plain_text import printable

_COLUMNS = ("rollout", "seed", "reward", "outcome", "tokens", "calls", "policy", "tries", "took", "age")
_OUTCOMES = {"policy_failure": "policy failed"}


def print_rollouts(rollouts: Sequence[RolloutSummary]) -> None:
    """Print a table, and below it why rollouts failed, each reason once."""
    print_table(_COLUMNS, [_cells(rollout) for rollout in rollouts])
    _print_reasons(rollouts)


def outcome_text(rollout: RolloutSummary) -> str:
    """Return how a rollout ended, in words."""
    return _OUTCOMES.get(rollout.outcome, rollout.outcome)


def short_id(rollout_id: str, job_id: str) -> str:
    """Return the id without its job's: `t3_17`."""
    return rollout_id.removeprefix(f"{job_id}_")


def _cells(r: RolloutSummary) -> list[str]:
    return [
        short_id(r.id, r.job_id),
        str(r.seed),
        "-" if r.reward is None else number(r.reward),
        outcome_text(r),
        "-" if r.completion_tokens is None else str(r.completion_tokens),
        "-" if r.calls is None else str(r.calls),
        versions_text(r.versions),
        str(r.tries),
        "-" if r.seconds is None else seconds(r.seconds),
        age(r.ended_at),
    ]


def _print_reasons(rollouts: Sequence[RolloutSummary]) -> None:
    reasons: dict[str, list[str]] = {}
    for r in rollouts:
        if r.problem is not None:
            reasons.setdefault(printable(r.problem.what), []).append(short_id(r.id, r.job_id))
    for what, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        message(f"{shown}: {what}")

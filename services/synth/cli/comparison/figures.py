"""The final and the best figures of jobs. Pure functions of their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from synth.api.schemas import Point

Better = Literal["higher", "lower"]

#: The metrics that jobs are compared by, and which way each is better; None: neither is.
COMPARED: dict[str, Better | None] = {
    "reward_mean": "higher",
    "eval.reward_mean": "higher",
    "validation_loss": "lower",
    "loss": None,
    "entropy": None,
    "completion_tokens_mean": None,
    "tokens_per_second": None,
}
#: Of SFT alone: the loss of RL is no measure of how good a policy is.
_LOSS: Better = "lower"
#: Metrics whose curves are drawn over each other.
DRAWN = ("reward_mean", "eval.reward_mean", "loss", "validation_loss")


@dataclass(frozen=True)
class Figure:
    """A metric of one job. final: its last value. best, best_step: its best value, if one direction is better."""

    final: float
    final_step: int
    best: float | None = None
    best_step: int | None = None


def figures(points: Sequence[Point], *, kind: str | None) -> dict[str, Figure]:
    """Return the compared metrics that a job has. points: ascending by step. kind: of the job."""
    by_name: dict[str, Figure] = {}
    for name, better in COMPARED.items():
        of_name = [p for p in points if p.name == name]
        if not of_name:
            continue
        if name == "loss" and kind == "sft":
            better = _LOSS
        best = _best(of_name, better)
        by_name[name] = Figure(
            final=of_name[-1].value,
            final_step=of_name[-1].step,
            best=best.value if best else None,
            best_step=best.step if best else None,
        )
    return by_name


def better_runs(figures_of_jobs: Sequence[Figure | None], name: str, *, kinds: Sequence[str | None]) -> set[int]:
    """Return the jobs with the best final value of a metric; none if all are equal or neither direction is better."""
    better = _LOSS if name == "loss" and set(kinds) == {"sft"} else COMPARED[name]
    values = [f.final for f in figures_of_jobs if f is not None]
    if better is None or len(set(values)) < 2:
        return set()
    best = max(values) if better == "higher" else min(values)
    return {i for i, f in enumerate(figures_of_jobs) if f is not None and f.final == best}


def drawn_metrics(figures_of_jobs: Sequence[dict[str, Figure]], kinds: Sequence[str | None]) -> list[str]:
    """Return the metrics whose curves are drawn: those in `DRAWN` that a job has; the loss for SFT only."""
    loss = any(kind == "sft" for kind in kinds)
    return [n for n in DRAWN if any(n in f for f in figures_of_jobs) and (n != "loss" or loss)]


def _best(points: Sequence[Point], better: Better | None) -> Point | None:
    """Return the best of the points, the first of several that are as good."""
    if better is None:
        return None
    return max(points, key=lambda p: p.value) if better == "higher" else min(points, key=lambda p: p.value)

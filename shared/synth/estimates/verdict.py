"""Decide whether training made a model better: the final policy against step 0, paired by their seeds or rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from synth.estimates.intervals import paired_difference

Measure = Literal["reward", "validation_loss"]
_UNITS: dict[Measure, str] = {"reward": "seed", "validation_loss": "row"}
_TITLES = {"learned": "learned", "worse": "worse", "no_change": "no change"}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a job's final policy with its source.

    outcome: "learned" or "worse" if the 95 % interval of the paired difference excludes 0, else "no_change".
    before, after: means of the measure at step 0 and at the last step. low, high: the interval of after - before.
    count: the seeds or validation rows that both have. cause: the most likely cause, if the job did not learn; next:
    the command or setting to try.
    """

    outcome: Literal["learned", "no_change", "worse"]
    measure: Measure
    before: float
    after: float
    low: float
    high: float
    count: int
    cause: str = ""
    next: str = ""

    def text(self) -> str:
        """Return one line: `learned: 0.38 → 0.98 on 128 seeds (interval of the difference 0.55 to 0.63)`."""
        measure = "validation loss " if self.measure == "validation_loss" else ""
        unit = _UNITS[self.measure] + "s" * (self.count != 1)
        interval = f"interval of the difference {_figure(self.low)} to {_figure(self.high)}"
        line = f"{_TITLES[self.outcome]}: {measure}{_figure(self.before)} → {_figure(self.after)}"
        return f"{line} on {self.count} {unit} ({interval})" + (f": {self.cause}" if self.cause else "")


def compare_policies(
    before: Mapping[int, float], after: Mapping[int, float], measure: Measure = "reward"
) -> Verdict | None:
    """Compare two policies, seed by seed or row by row. Returns None if they share fewer than two."""
    difference = paired_difference(before, after)
    if difference is None or difference.interval is None:
        return None
    low, high = difference.interval.low, difference.interval.high
    outcome: Literal["learned", "no_change", "worse"] = "no_change"
    if low > 0 or high < 0:
        outcome = "learned" if (low > 0) == (measure == "reward") else "worse"
    shared = before.keys() & after.keys()
    return Verdict(
        outcome=outcome,
        measure=measure,
        before=statistics.fmean(before[key] for key in shared),
        after=statistics.fmean(after[key] for key in shared),
        low=low,
        high=high,
        count=difference.seeds,
    )


def compare_losses(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Verdict | None:
    """Compare the validation losses of two policies, row by row.

    before, after: the loss of each row times its weight in the mean, and that weight. The difference of the means is a
    ratio estimate: its interval is Student's, of the linearised rows Δ + w·(δ - Δ) / mean w. δ is the difference of a
    row, Δ the difference of the means (W. G. Cochran, Sampling Techniques, 3rd ed., 1977, section 6.3). Returns None
    for fewer than two rows with a weight.
    """
    rows = [(a, b, w) for (a, w), (b, _) in zip(before, after, strict=True) if w > 0]
    weight = sum(w for *_, w in rows)
    if len(rows) < 2:
        return None
    old, new = sum(a for a, *_ in rows) / weight, sum(b for _, b, _ in rows) / weight
    change, mean_weight = new - old, weight / len(rows)
    linear = {i: change + (b - a - w * change) / mean_weight for i, (a, b, w) in enumerate(rows)}
    verdict = compare_policies(dict.fromkeys(linear, 0.0), linear, "validation_loss")
    return verdict and msgspec.structs.replace(verdict, before=old, after=new)


def _figure(value: float) -> str:
    """Return a number with two decimals, or with two significant digits if it is small."""
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"

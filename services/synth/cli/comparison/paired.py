"""Several measured models or jobs against the first, on the seeds or rows that both have. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synth.estimates.intervals import Interval, PairedDifference, mean_interval, paired_difference


@dataclass(frozen=True)
class Measured:
    """The values of one model or evaluation. title: its name. by_key: a value of each seed or row."""

    title: str
    by_key: Mapping[int, float]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.by_key.values()) if self.by_key else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean; None if there is none."""
        return mean_interval(list(self.by_key.values()))


def against_first(measured: Sequence[Measured]) -> list[PairedDifference | None]:
    """Return what each has more than the first, paired by key; None for the first, and if they share no key."""
    return [None, *(paired_difference(measured[0].by_key, other.by_key) for other in measured[1:])]


def verdict(difference: PairedDifference | None, *, first: str, other: str, unit: str) -> str:
    """Return a sentence: which of the two is better, if the interval shows it. unit: "seed" or "row"."""
    interval = difference.interval if difference else None
    if difference is None:
        return f"{first} and {other} have no {unit} in common"
    if interval is None:
        return f"one {unit} shows nothing about the others"
    if interval.low > 0 or interval.high < 0:
        return f"{other if interval.low > 0 else first} is better: the interval does not contain 0"
    if difference.equal == difference.seeds:
        return f"{first} and {other} are equal on every {unit}"
    return f"the interval contains 0: on these {unit}s, neither {first} nor {other} is better with certainty"

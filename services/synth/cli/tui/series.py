"""The values of a metric over a whole run, in a bounded number of means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Twice the columns of the widest line that is drawn of a series, and more.
_MOST_MEANS = 512


def averaged(values: Sequence[float], most: int) -> list[float]:
    """At most so many means of equal shares of the values, in their order; the values themselves where they are few."""
    if len(values) <= most:
        return list(values)
    cuts = [round(i * len(values) / most) for i in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]


@dataclass
class Series:
    """A metric's values as they come in. Values that are not finite are only remembered as the last one."""

    last: float = math.nan
    low: float = math.inf
    high: float = -math.inf
    _sums: list[float] = field(default_factory=list[float])
    _counts: list[int] = field(default_factory=list[int])
    _share: int = 1

    def add(self, value: float) -> None:
        """Take in the next value."""
        self.last = value
        if not math.isfinite(value):
            return
        self.low, self.high = min(self.low, value), max(self.high, value)
        if self._counts and self._counts[-1] < self._share:
            self._sums[-1] += value
            self._counts[-1] += 1
            return
        if len(self._sums) == _MOST_MEANS:
            self._sums = [sum(pair) for pair in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self._counts = [sum(pair) for pair in zip(self._counts[::2], self._counts[1::2], strict=True)]
            self._share *= 2
        self._sums.append(value)
        self._counts.append(1)

    @property
    def values(self) -> list[float]:
        """The run from its beginning on, each entry the mean of as many values as the others, but the last."""
        return [total / count for total, count in zip(self._sums, self._counts, strict=True)]

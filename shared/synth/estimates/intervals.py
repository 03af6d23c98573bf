"""Confidence intervals of a mean reward, and of the difference between two. Pure functions of rewards."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.95
#: The 97.5 % quantile of the normal distribution.
_Z = 1.959963984540054
_PRECISION = 1e-12


@dataclass(frozen=True)
class Interval:
    """A confidence interval. level: the share of such intervals that hold the true mean."""

    low: float
    high: float
    method: Literal["wilson", "student"]
    level: float = LEVEL


@dataclass(frozen=True)
class PairedDifference:
    """The rewards of B minus the rewards of A, on the seeds that both have.

    better, worse, equal: seeds on which B earned more, less and the same. interval: of the mean; None for one seed.
    """

    seeds: int
    mean: float
    interval: Interval | None
    better: int
    worse: int
    equal: int


def mean_interval(rewards: Sequence[float]) -> Interval | None:
    """Return the 95 % confidence interval of the mean reward: Wilson's if every reward is 0 or 1, else Student's.

    Returns None without a reward, and for a single one that is neither 0 nor 1.
    """
    if rewards and all(reward in (0.0, 1.0) for reward in rewards):
        return wilson(sum(reward == 1.0 for reward in rewards), len(rewards))
    return student(rewards)


def wilson(successes: int, n: int) -> Interval:
    """Return Wilson's score interval of a share (E. B. Wilson, JASA 22 (1927), 209-212), not continuity-corrected.

    It holds for shares near 0 and 1 too, where mean ± z standard errors leaves [0, 1]. n: at least 1.
    """
    share, square = successes / n, _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z * math.sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    # The ends are exact if no or every reward is a success.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == n else middle + half
    return Interval(low, high, "wilson")


def student(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of a mean: mean ± t(n - 1) s / √n (Student, Biometrika 6 (1908), 1-25).

    It assumes that the mean is about normal, which holds for some tens of bounded rewards. None for less than two
    values.
    """
    n = len(values)
    if n < 2:
        return None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(n)
    half = t_quantile((1 + LEVEL) / 2, n - 1) * error
    return Interval(mean - half, mean + half, "student")


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> PairedDifference | None:
    """Return how the rewards of B differ from A's, seed by seed, with Student's interval of the mean difference.

    The difference cancels the seeds' own difficulty, so that it is more exact than the difference of two means. a, b:
    rewards by seed. None if no seed is in both.
    """
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return None
    gains = [b[seed] - a[seed] for seed in shared]
    return PairedDifference(
        seeds=len(gains),
        mean=statistics.fmean(gains),
        interval=student(gains),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        equal=sum(gain == 0 for gain in gains),
    )


def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t with `df` degrees of freedom, for p from 0.5 to 1, by bisection.

    P(T ≤ t) = 1 - I(df / (df + t²); df/2, 1/2) / 2 (Abramowitz and Stegun, 26.7.1 and 26.5.27).
    """
    low, high = 0.0, 1.0
    while _t_distribution(high, df) < p:
        high *= 2
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_distribution(middle, df) < p else (low, middle)
    return (low + high) / 2


def _t_distribution(t: float, df: int) -> float:
    return 1 - _incomplete_beta(df / (df + t * t), df / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I(x; a, b), by its continued fraction (ibid., 26.5.8)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        # The fraction converges fast on the other side.
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + …)) by Lentz's method (W. J. Lentz, Applied Optics 15 (1976), 668-671)."""
    tiny = 1e-300
    value, c, d, m = 1.0, 1.0, 0.0, 0
    while True:
        m += 1
        k = m // 2
        if m % 2:
            term = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        else:
            term = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            return value

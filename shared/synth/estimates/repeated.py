"""mean@k and pass@k of an evaluation that plays each seed several times. Pure functions of rewards by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synth.estimates.intervals import Interval, PairedDifference, mean_interval, paired_difference


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. interval: over the seeds, or None. seeds: their number."""

    value: float
    interval: Interval | None
    seeds: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that one of k rollouts succeeds, unbiased from n of which c did: 1 - C(n - c, k) / C(n, k).

    Chen et al., Evaluating Large Language Models Trained on Code (arXiv 2107.03374, 2021), equation 1. k: at most n.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def ks_of(n: int) -> list[int]:
    """Return the k of pass@k for n rollouts of a seed: the powers of two up to n, and n."""
    return sorted({1 << i for i in range(n.bit_length())} | {n})


def seed_means(rewards: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the mean reward of each seed."""
    return {seed: statistics.fmean(of_seed) for seed, of_seed in rewards.items() if of_seed}


def seed_passes(rewards: Mapping[int, Sequence[float]], *, threshold: float, k: int) -> dict[int, float]:
    """Return the pass@k of each seed that has k rollouts. threshold: the least reward that is a success."""
    return {
        seed: pass_at_k(len(of_seed), sum(reward >= threshold for reward in of_seed), k)
        for seed, of_seed in rewards.items()
        if len(of_seed) >= k
    }


def over_seeds(by_seed: Mapping[int, float]) -> Estimate | None:
    """Return the mean over seeds with its interval; None without a seed.

    The rollouts of a seed are not independent of each other, so that each seed is one observation: a cluster (Miller,
    Adding Error Bars to Evals, arXiv 2411.00640, 2024, section 2.2). Student's interval of the seeds' means is the
    clustered one if the clusters have equal sizes; Wilson's if each mean is 0 or 1.
    """
    values = list(by_seed.values())
    return Estimate(statistics.fmean(values), mean_interval(values), len(values)) if values else None


def estimates(
    rewards: Mapping[int, Sequence[float]], successes: Mapping[int, Sequence[float]], *, n: int, threshold: float | None
) -> dict[str, Estimate]:
    """Return `mean@n` if n is above 1, and with a threshold `pass@k` for each k of `ks_of(n)`.

    rewards: the reported rewards, by seed. successes: the rewards that the threshold applies to, by seed. n: requested
    rollouts of a seed; a seed with fewer counts in the mean, and in pass@k up to its own number.
    """
    measured = {name: over_seeds(by_seed) for name, by_seed in by_measure(rewards, successes, n, threshold).items()}
    return {name: estimate for name, estimate in measured.items() if estimate is not None}


def paired_estimates(
    a: Mapping[str, Mapping[int, float]], b: Mapping[str, Mapping[int, float]]
) -> dict[str, PairedDifference]:
    """Return B minus A for each measure of both, on the seeds of both. a, b: as `by_measure` returns them."""
    differences = {name: paired_difference(a[name], b[name]) for name in a if name in b}
    return {name: difference for name, difference in differences.items() if difference is not None}


def by_measure(
    rewards: Mapping[int, Sequence[float]], successes: Mapping[int, Sequence[float]], n: int, threshold: float | None
) -> dict[str, dict[int, float]]:
    """Return the measures of `estimates`, seed by seed."""
    measures = {f"mean@{n}": seed_means(rewards)} if n > 1 else {}
    if threshold is not None:
        measures |= {f"pass@{k}": seed_passes(successes, threshold=threshold, k=k) for k in ks_of(n)}
    return measures


def as_values(measured: Mapping[str, Estimate]) -> dict[str, float]:
    """Return estimates as values of an event: each with its 95 % interval's ends, `<name>_low` and `<name>_high`."""
    values: dict[str, float] = {}
    for name, estimate in measured.items():
        values[name] = estimate.value
        if estimate.interval is not None:
            values |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
    return values

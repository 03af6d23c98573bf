"""Confidence intervals, against published values."""

from __future__ import annotations

import math
import random

import pytest

from synth.estimates.intervals import mean_interval, paired_difference, student, t_quantile, wilson


@pytest.mark.parametrize(
    ("df", "quantile"),
    [(1, 12.7062), (4, 2.7764), (9, 2.2622), (29, 2.0452), (120, 1.9799), (10**6, 1.96)],
)
def test_the_quantiles_of_students_t_are_those_of_its_tables(df: int, quantile: float):
    assert t_quantile(0.975, df) == pytest.approx(quantile, abs=6e-5)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_intervals_are_those_of_newcombes_table(successes: int, n: int, low: float, high: float):
    found = wilson(successes, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_method_follows_from_the_rewards():
    assert mean_interval([0.0, 1.0, 1.0]) == wilson(2, 3)
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    # Mean 3, s = √2.5, t = 2.7764.
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert found is not None
    assert (found.low, found.high, found.method) == (
        pytest.approx(3 - half, abs=1e-5),
        pytest.approx(3 + half, abs=1e-5),
        "student",
    )
    assert (mean_interval([]), mean_interval([0.5])) == (None, None)
    assert mean_interval([1.0]) == wilson(1, 1)


def test_nineteen_of_twenty_intervals_hold_the_true_mean():
    draws, held, n = random.Random(0), 0, 2000
    for _ in range(n):
        found = student([draws.gauss(3, 2) for _ in range(8)])
        held += found is not None and found.low <= 3 <= found.high
    assert held / n == pytest.approx(0.95, abs=0.015)


def test_a_difference_is_of_the_seeds_that_both_have():
    found = paired_difference({1: 0.0, 2: 0.5, 3: 1.0, 9: 1.0}, {1: 1.0, 2: 0.5, 3: 0.5, 7: 0.0})
    assert found is not None
    assert (found.seeds, found.better, found.worse, found.equal) == (3, 1, 1, 1)
    assert found.mean == pytest.approx(1 / 6)
    assert found.interval == student([1.0, 0.0, -0.5])
    assert paired_difference({1: 0.0}, {2: 0.0}) is None

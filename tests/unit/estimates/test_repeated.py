"""mean@k and pass@k, against values worked out by hand."""

from __future__ import annotations

import itertools
import statistics

import pytest

from synth.estimates.intervals import student, wilson
from synth.estimates.repeated import as_values, by_measure, estimates, ks_of, paired_estimates, pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "chance"),
    # 1 - C(n - c, k) / C(n, k): of 4 with 1 success, 2 are drawn in 6 ways, 3 of them without it.
    [(4, 1, 1, 1 / 4), (4, 1, 2, 1 / 2), (4, 2, 2, 5 / 6), (4, 1, 4, 1), (5, 2, 3, 9 / 10), (4, 0, 4, 0), (3, 3, 1, 1)],
)
def test_pass_at_k_is_the_share_of_the_draws_of_k_that_hold_a_success(n: int, c: int, k: int, chance: float):
    assert pass_at_k(n, c, k) == pytest.approx(chance)
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(statistics.fmean(any(draw) for draw in draws))


def test_pass_at_k_is_exact_where_factorials_are_large():
    assert pass_at_k(1000, 1, 500) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (10, [1, 2, 4, 8, 10])])
def test_k_is_each_power_of_two_and_all(n: int, ks: list[int]):
    assert ks_of(n) == ks


def test_a_seed_is_one_observation_however_often_it_was_played():
    rewards = {1: [1.0, 0.0], 2: [1.0, 1.0], 3: [0.0, 0.0]}
    found = estimates(rewards, rewards, n=2, threshold=1.0)
    assert list(found) == ["mean@2", "pass@1", "pass@2"]
    assert (found["mean@2"].value, found["mean@2"].interval) == (0.5, student([0.5, 1.0, 0.0]))
    assert (found["pass@1"].value, found["pass@1"].seeds) == (0.5, 3)
    # Each seed passes at 2 or does not: a share.
    assert (found["pass@2"].value, found["pass@2"].interval) == (pytest.approx(2 / 3), wilson(2, 3))
    values = as_values(found)
    assert (values["pass@2_low"], values["pass@2_high"]) == (wilson(2, 3).low, wilson(2, 3).high)


def test_a_seed_that_lacks_rollouts_counts_as_far_as_it_goes():
    rewards = {1: [1.0], 2: [0.0, 0.0], 3: []}
    found = estimates(rewards, rewards, n=2, threshold=1.0)
    assert (found["mean@2"].value, found["mean@2"].seeds) == (0.5, 2)
    assert (found["pass@2"].value, found["pass@2"].seeds) == (0.0, 1)


def test_success_has_a_reward_and_a_threshold_of_its_own():
    found = estimates({1: [0.1]}, {1: [0.5]}, n=1, threshold=0.5)
    assert {name: estimate.value for name, estimate in found.items()} == {"pass@1": 1.0}
    assert estimates({1: [0.1]}, {1: [0.5]}, n=1, threshold=None) == {}
    assert estimates({}, {}, n=4, threshold=1.0) == {}


def test_differences_are_paired_by_seed_and_of_what_both_have():
    a, b = {1: [0.0, 1.0], 2: [0.0, 0.0], 3: [1.0, 1.0]}, {1: [1.0, 1.0], 2: [0.0, 1.0]}
    found = paired_estimates(by_measure(a, a, 2, 1.0), by_measure(b, b, 2, 1.0))
    assert (found["mean@2"].mean, found["mean@2"].seeds) == (0.5, 2)
    assert (found["pass@2"].mean, found["pass@2"].better, found["pass@2"].equal) == (0.5, 1, 1)
    assert "mean@2" not in paired_estimates(by_measure(a, a, 2, 1.0), by_measure(b, b, 1, 1.0))

"""The verdict on a trained model: the interval of the paired difference decides, and the line that people read."""

from __future__ import annotations

import random

import msgspec
import pytest

from synth.estimates.intervals import paired_difference
from synth.estimates.verdict import Verdict, compare_losses, compare_policies

NOISE = [0.1, -0.1, 0.05, -0.05, 0.0, 0.02, -0.02, 0.1]
SOURCE = {seed: 0.4 + noise for seed, noise in enumerate(NOISE)}


def moved(by: float) -> dict[int, float]:
    return {seed: reward + by + NOISE[-seed] for seed, reward in SOURCE.items()}


@pytest.mark.parametrize(("by", "outcome"), [(0.5, "learned"), (0.0, "no_change"), (-0.3, "worse")])
def test_a_difference_counts_if_its_interval_excludes_zero(by: float, outcome: str):
    verdict = compare_policies(SOURCE, moved(by))
    difference = paired_difference(SOURCE, moved(by))
    assert verdict is not None
    assert difference is not None
    assert difference.interval is not None
    assert (verdict.outcome, verdict.count) == (outcome, 8)
    assert (verdict.low, verdict.high) == (difference.interval.low, difference.interval.high)
    assert verdict.after - verdict.before == pytest.approx(difference.mean)


def test_a_lower_validation_loss_is_learned():
    lower = compare_policies(SOURCE, moved(-0.3), "validation_loss")
    higher = compare_policies(SOURCE, moved(0.3), "validation_loss")
    assert [v and v.outcome for v in (lower, higher)] == ["learned", "worse"]


def test_means_are_of_what_both_policies_have():
    verdict = compare_policies({1: 0.0, 2: 0.0, 3: 1.0}, {1: 1.0, 2: 1.0, 4: 0.0})
    assert verdict is not None
    assert (verdict.before, verdict.after, verdict.count) == (0.0, 1.0, 2)


def test_losses_are_compared_as_means_over_tokens_with_an_interval_over_rows():
    rng = random.Random(0)
    tokens = [rng.randint(1, 40) for _ in range(400)]
    old = [rng.gauss(2.0, 0.3) for _ in tokens]
    new = [loss - rng.gauss(0.1, 0.2) for loss in old]
    before, after = ([(loss * n, float(n)) for loss, n in zip(losses, tokens, strict=True)] for losses in (old, new))
    verdict = compare_losses([*before, (0.0, 0.0)], [*after, (0.0, 0.0)])
    assert verdict is not None
    means = [sum(total for total, _ in rows) / sum(tokens) for rows in (before, after)]
    assert [verdict.before, verdict.after] == pytest.approx(means)
    assert (verdict.outcome, verdict.count) == ("learned", 400)
    # The interval is that of resampled rows.
    indices = [[rng.randrange(400) for _ in tokens] for _ in range(2000)]
    changes = sorted(
        sum(tokens[i] * (new[i] - old[i]) for i in drawn) / sum(tokens[i] for i in drawn) for drawn in indices
    )
    assert [verdict.low, verdict.high] == pytest.approx([changes[50], changes[1949]], abs=0.003)


@pytest.mark.parametrize("after", [{}, {7: 1.0}, {0: 1.0}])
def test_below_two_common_seeds_there_is_no_verdict(after: dict[int, float]):
    assert compare_policies(SOURCE, after) is None


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "learned: 0.38 → 0.98 on 128 seeds (interval of the difference 0.55 to 0.63)"),
        (
            {"outcome": "no_change", "before": 0.0, "after": 0.0, "low": 0.0, "high": 0.0, "cause": "nothing was paid"},
            "no change: 0.00 → 0.00 on 128 seeds (interval of the difference 0.00 to 0.00): nothing was paid",
        ),
        (
            {"measure": "validation_loss", "before": 2.31, "after": 0.0123, "low": -2.4, "high": -2.2, "count": 1},
            "learned: validation loss 2.31 → 0.012 on 1 row (interval of the difference -2.40 to -2.20)",
        ),
    ],
)
def test_a_verdict_is_one_line(changes: dict[str, object], line: str):
    verdict = Verdict(outcome="learned", measure="reward", before=0.38, after=0.98, low=0.55, high=0.63, count=128)
    assert msgspec.structs.replace(verdict, **changes).text() == line

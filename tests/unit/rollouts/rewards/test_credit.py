"""Blending and advantages against vectors that are computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synth.judging.contract import Review, RolloutReview
from synth.methods.rewards import RewardSettings, RewardWeights
from synth.rollouts.collection.batching import CreditRules, ScoredRollout, build_batch
from synth.rollouts.collection.judged import add_review, with_sources
from synth.rollouts.rewards.credit import has_signal, turn_advantages
from synth.trajectories import Branch, RewardSources, RolloutBatch


def test_judged_events_count_in_their_turn_and_the_outcome_in_the_last():
    review = RolloutReview(
        rollout_id="r", events=[Review(total=t) for t in (0.5, 1.0, 0.0)], outcome=Review(total=0.25)
    )
    sources = add_review(RewardSources([1.0, 0.0, 2.0]), review, RewardSettings(scores="judges"))
    weights = RewardWeights(env=0.2, event=0.4, outcome=0.4)
    assert sources.turns(weights) == pytest.approx([0.4, 0.4, 0.5])
    plain = ScoredRollout("r", 0, 0, 3.0, [1.0, 0.0, 2.0], [], 0.0, 1)
    judged = with_sources(plain, sources, RewardSettings(weights=weights))
    # 0.2 · 3 + 0.4 · 1.5 + 0.4 · 0.25
    assert judged.reward == pytest.approx(1.3)
    assert judged.sources == {"env": 3.0, "event": 1.5, "outcome": 0.25}


def test_a_turns_advantage_is_its_return_to_go_beyond_the_groups():
    # Returns: [3, 2, 2], [1, 1], [2, 0, 0]; means 2, 1, 2/3 with 0 for the rollout that is over.
    turns = [[1.0, 0.0, 2.0], [0.0, 1.0], [2.0, 0.0, 0.0]]
    centred = [[1, 1, 4 / 3], [-1, 0], [0, -1, -2 / 3]]
    found = turn_advantages(turns, 1.0, by_std=False)
    assert found is not None
    for ours, expected in zip(found, centred, strict=True):
        assert ours == pytest.approx(expected)
    scale = math.sqrt(sum(x * x for row in centred for x in row) / 8)
    scaled = turn_advantages(turns, 1.0, by_std=True)
    assert scaled is not None
    for ours, expected in zip(scaled, centred, strict=True):
        assert ours == pytest.approx([x / scale for x in expected], rel=1e-5)


def test_a_discount_of_zero_is_each_turns_own_reward():
    found = turn_advantages([[1.0, 0.0], [0.0, 2.0]], 0.0, by_std=False)
    assert found == [[0.5, -1.0], [-0.5, 1.0]]
    halved = turn_advantages([[1.0, 2.0], [0.0, 0.0]], 0.5, by_std=False)
    assert halved == [[1.0, 1.0], [-1.0, -1.0]]


def test_equal_sums_that_were_earned_in_other_turns_have_a_signal_for_turns_alone():
    turns = [[1.0, 0.0], [0.0, 1.0]]
    assert has_signal(turns, 1.0)
    assert not has_signal(turns, None)
    assert not has_signal([[1.0, 0.0]] * 2, 1.0)
    assert turn_advantages([[1.0, 0.0]] * 4, 1.0, by_std=True) is None


def branch(calls: list[int]) -> Branch:
    """A sequence with a token of context, and tokens that these calls sampled (-1: context)."""
    number = np.asarray([-1, *calls], np.int32)
    mask = number >= 0
    return Branch(
        tokens=np.arange(len(number), dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        calls=number,
    )


def test_every_token_of_a_batch_has_the_advantage_of_its_turn():
    rollouts = [
        ScoredRollout("j_t1_0", 0, 7, 3.0, [1.0, 2.0], [branch([0, 0, -1, 1])], 0.0, 1),
        # Its second call began a sequence of its own.
        ScoredRollout("j_t1_1", 0, 7, 0.0, [0.0, 0.0], [branch([0]), branch([1, 1])], 0.0, 1),
    ]
    built = build_batch(
        rollouts,
        job_id="j",
        iteration=1,
        temperature=1.0,
        groups=1,
        group_size=2,
        credit=CreditRules(by_std=False, turn_discount=1.0),
        values={},
    )
    batch = RolloutBatch.from_bytes(built.to_bytes())
    assert batch.token_advantages is not None
    # Returns [3, 2] and [0, 0]: ±1.5 and ±1.
    assert batch.token_advantages.tolist() == [0, 1.5, 1.5, 0, 1, 0, -1.5, 0, -1, -1]
    assert batch.advantages.tolist() == pytest.approx([4 / 3, -1.5, -1.0])
    assert [r.advantage for r in batch.meta.rollouts] == pytest.approx([4 / 3, -3.5 / 3])

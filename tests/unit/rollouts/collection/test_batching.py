"""Advantages and batches: what is learned from a group, and that order of arrival changes nothing."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from synth.rollouts.collection.batching import CreditRules, ScoredRollout, build_batch, group_has_signal
from synth.rollouts.rewards.credit import episode_advantages
from synth.trajectories import Branch, RolloutBatch

PLAIN = CreditRules()


def branch(tokens: int) -> Branch:
    mask = np.arange(tokens) >= 2
    return Branch(
        tokens=np.arange(tokens, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        calls=np.where(mask, 0, -1).astype(np.int32),
    )


def rollout(index: int, reward: float, *, group_size: int = 4, branches: int = 1) -> ScoredRollout:
    return ScoredRollout(
        rollout_id=f"job_x_t1_{index}",
        group=index // group_size,
        seed=100 + index // group_size,
        reward=reward,
        turn_rewards=[reward],
        branches=[branch(4 + index) for _ in range(branches)],
        seconds=0.1,
        tries=1,
    )


def batch_of(rollouts: list[ScoredRollout], groups: int, credit: CreditRules = PLAIN) -> RolloutBatch:
    return build_batch(
        rollouts,
        job_id="job_x",
        iteration=1,
        temperature=1.0,
        groups=groups,
        group_size=4,
        credit=credit,
        values={},
    )


def test_advantages_are_centred_and_scaled_by_the_groups_spread():
    found = episode_advantages([1.0, 0.0, 0.0, 1.0], by_std=True)
    assert found == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert episode_advantages([1.0, 0.0], by_std=False) == pytest.approx([0.5, -0.5])


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.1 + 0.2, 0.3], [0.5]])
def test_a_group_without_a_difference_has_no_signal(rewards: list[float]):
    assert episode_advantages(rewards, by_std=True) is None


def test_a_batch_is_the_same_bytes_in_whatever_order_rollouts_finished():
    rollouts = [rollout(i, float(i % 2)) for i in range(8)]
    shuffled = random.Random(1).sample(rollouts, 8)
    assert batch_of(rollouts, 2).to_bytes() == batch_of(shuffled, 2).to_bytes()


def test_a_group_that_lacks_a_rollout_or_a_signal_is_dropped_and_its_rewards_still_count():
    whole, short, flat = range(4), range(4, 7), range(8, 12)
    rollouts = [rollout(i, float(i % 2)) for i in (*whole, *short)] + [rollout(i, 1.0) for i in flat]
    batch = batch_of(rollouts, 3)
    assert (batch.meta.groups_kept, batch.meta.groups_dropped) == (1, 2)
    assert batch.sequences == 4
    assert len(batch.meta.rollouts) == 11


def test_every_branch_of_a_rollout_is_a_sequence_with_its_advantage():
    rollouts = [rollout(i, float(i % 2), branches=1 + i % 2) for i in range(4)]
    batch = batch_of(rollouts, 1)
    assert batch.sequences == 6
    assert list(batch.rollout) == [0, 1, 1, 2, 3, 3]
    assert batch.advantages[1] == batch.advantages[2] > 0
    back = RolloutBatch.from_bytes(batch.to_bytes())
    assert np.array_equal(back.tokens, batch.tokens)
    assert back.meta == batch.meta


def test_a_batch_without_a_kept_group_is_empty_and_whole():
    batch = RolloutBatch.from_bytes(batch_of([rollout(i, 0.0) for i in range(4)], 1).to_bytes())
    assert batch.sequences == 0
    assert len(batch.tokens) == 0
    assert math.isclose(batch.meta.rollouts[0].reward, 0.0)


def cut_off(index: int, reward: float) -> ScoredRollout:
    return dataclasses.replace(rollout(index, reward), cut_off=True)


def test_a_rollout_that_was_cut_off_is_trained_unless_the_job_says_otherwise():
    rollouts = [rollout(0, 1.0), cut_off(1, 1.0), rollout(2, 0.0), cut_off(3, 0.0)]
    assert batch_of(rollouts, 1).advantages.tolist() == pytest.approx([1, 1, -1, -1], abs=1e-5)


def test_masked_its_sequences_are_left_out_and_its_reward_counts():
    rollouts = [rollout(0, 1.0), cut_off(1, 1.0), rollout(2, 0.0), cut_off(3, 0.0)]
    batch = batch_of(rollouts, 1, CreditRules(overlong="mask"))
    assert list(batch.rollout) == [0, 2]
    assert batch.advantages.tolist() == pytest.approx([1, -1], abs=1e-5)
    assert [r.advantage is None for r in batch.meta.rollouts] == [False, True, False, True]
    assert [r.reward for r in batch.meta.rollouts] == [1, 1, 0, 0]


def test_a_group_of_which_all_are_masked_is_dropped():
    rollouts = [cut_off(i, float(i % 2)) for i in range(4)]
    rules = CreditRules(overlong="mask")
    assert not group_has_signal(rollouts, rules)
    assert batch_of(rollouts, 1, rules).meta.groups_dropped == 1


def test_penalised_its_advantage_is_of_a_lower_reward_and_the_reward_that_is_reported_stays():
    rollouts = [rollout(0, 1.0), cut_off(1, 1.0), rollout(2, 1.0), cut_off(3, 1.0)]
    rules = CreditRules(by_std=False, overlong="penalise", overlong_penalty=0.5)
    batch = batch_of(rollouts, 1, rules)
    assert batch.advantages.tolist() == pytest.approx([0.25, -0.25, 0.25, -0.25])
    assert [r.reward for r in batch.meta.rollouts] == [1, 1, 1, 1]
    # The penalty alone is a signal, so that the group is not refilled.
    assert group_has_signal(rollouts, rules)
    assert not group_has_signal(rollouts, CreditRules())


def test_by_turn_the_penalty_is_of_the_last():
    long = dataclasses.replace(cut_off(0, 3.0), turn_rewards=[1.0, 2.0])
    assert CreditRules(turn_discount=1.0, overlong="penalise", overlong_penalty=0.5).turn_rewards(long) == [1.0, 1.5]


def test_a_rollout_whose_calls_were_all_given_up_is_not_trained_and_its_reward_counts():
    empty = dataclasses.replace(rollout(0, 1.0), branches=[], turn_rewards=[0.25, 0.75])
    batch = batch_of([empty, *(rollout(i, 0.0) for i in (1, 2, 3))], 1, CreditRules(turn_discount=1.0))
    assert batch.meta.groups_kept == 1
    assert [len(r.sampled_tokens) for r in batch.meta.rollouts] == [0, 1, 1, 1]

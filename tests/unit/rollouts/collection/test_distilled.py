"""What a teacher's word is worth: advantages worked out by hand, and what of it is kept and reported."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from synth.methods.distillation import DistillationSettings
from synth.rollouts.collection.batching import CreditRules, ScoredRollout, build_batch, group_has_signal
from synth.rollouts.collection.metrics import collection_metrics
from synth.trajectories import Branch, RecordedTrajectory, RewardSources, RolloutBatch

#: Of the four tokens, the last three are sampled; μ says 1/2, 1/4 and 1/8, the teacher 1/4, 1/4 and 1/2.
MU = np.log([1, 1 / 2, 1 / 4, 1 / 8])
TEACHER = np.log([1, 1 / 4, 1 / 4, 1 / 2])
LN2 = math.log(2)


def branch(teacher: np.ndarray | None = TEACHER, calls: tuple[int, ...] = (-1, 0, 0, 1)) -> Branch:
    mask = np.asarray([False, True, True, True])
    return Branch(
        tokens=np.arange(4, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, MU, 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        calls=np.asarray(calls, dtype=np.int32),
        teacher_logprobs=None if teacher is None else np.asarray([math.nan, *teacher[1:]], dtype=np.float32),
    )


def rollout(index: int, reward: float, **fields: object) -> ScoredRollout:
    found = ScoredRollout(f"job_x_t1_{index}", 0, 7, reward, [reward / 2, reward / 2], [branch()], 0.1, 1)
    return dataclasses.replace(found, **fields)  # type: ignore[arg-type]


def credit(**settings: float) -> CreditRules:
    return CreditRules(by_std=False, distillation=DistillationSettings(teacher="t", **settings))


def batch_of(rollouts: list[ScoredRollout], rules: CreditRules) -> RolloutBatch:
    return build_batch(
        rollouts, job_id="j", iteration=1, temperature=1.0, groups=1, group_size=2, credit=rules, values={}
    )


def test_each_token_is_lowered_by_how_much_likelier_it_was_to_the_policy_than_to_the_teacher():
    batch = batch_of([rollout(0, 0.5), rollout(1, 0.5)], credit())
    assert batch.token_advantages is not None
    # log 1/2 − log 1/4 = ln 2, 0, and log 1/8 − log 1/2 = −2 ln 2; the prompt has none.
    assert batch.token_advantages[:4].tolist() == pytest.approx([0, -LN2, 0, 2 * LN2])
    assert batch.advantages.tolist() == pytest.approx([LN2 / 3] * 2)
    assert (batch.meta.groups_kept, batch.meta.groups_dropped) == (1, 0)


def test_the_coefficient_and_the_weight_of_the_rewards_count():
    batch = batch_of([rollout(0, 1.0), rollout(1, 0.0)], credit(kl_coef=0.5, reward_weight=2.0))
    assert batch.token_advantages is not None
    # The rewards alone give ±1/2, twice that is ±1.
    assert batch.token_advantages[:4].tolist() == pytest.approx([0, 1 - LN2 / 2, 1, 1 + LN2])
    assert batch.token_advantages[4:].tolist() == pytest.approx([0, -1 - LN2 / 2, -1, -1 + LN2])
    assert [r.advantage for r in batch.meta.rollouts] == pytest.approx([1 + LN2 / 6, -1 + LN2 / 6])


def test_without_a_weight_no_reward_counts():
    paid, unpaid = (batch_of([rollout(0, r), rollout(1, 0.0)], credit(reward_weight=0.0)) for r in (1.0, 0.0))
    assert paid.token_advantages is not None
    assert unpaid.token_advantages is not None
    assert paid.token_advantages.tolist() == unpaid.token_advantages.tolist()


def test_turns_keep_what_they_earned_beside_the_teacher():
    rules = dataclasses.replace(credit(), turn_discount=1.0)
    earned = [rollout(0, 1.0, turn_rewards=[0.0, 1.0]), rollout(1, 1.0, turn_rewards=[1.0, 0.0])]
    batch = batch_of(earned, rules)
    assert batch.token_advantages is not None
    # The return of the first turn is 1 for both, that of the second 1 and 0.
    assert batch.token_advantages[:4].tolist() == pytest.approx([0, -LN2, 0, 0.5 + 2 * LN2])


def test_a_token_that_the_teacher_was_not_asked_about_has_the_advantage_of_its_reward_alone():
    unasked = branch(np.asarray([1, TEACHER[1], TEACHER[2], math.nan]))
    batch = batch_of([rollout(0, 1.0, branches=[unasked]), rollout(1, 0.0)], credit())
    assert batch.token_advantages is not None
    assert batch.token_advantages[:4].tolist() == pytest.approx([0, 0.5 - LN2, 0.5, 0.5])


def test_a_group_whose_rewards_are_all_the_same_still_teaches():
    members = [rollout(0, 1.0), rollout(1, 1.0)]
    assert group_has_signal(members, credit())
    assert not group_has_signal(members, CreditRules())
    cut_off = [dataclasses.replace(member, cut_off=True) for member in members]
    assert not group_has_signal(cut_off, dataclasses.replace(credit(), overlong="mask"))


def test_the_mean_over_tokens_is_reported_where_a_teacher_was_asked():
    values = collection_metrics([rollout(0, 1.0), rollout(1, 0.0)], failed=0)
    assert values["teacher_kl"] == pytest.approx(-LN2 / 3)
    untaught = rollout(0, 1.0, branches=[branch(None)])
    assert "teacher_kl" not in collection_metrics([untaught], failed=0)


def test_what_the_teacher_said_is_in_the_trajectory_bit_by_bit():
    branches = [branch(), branch(None), branch(TEACHER / 3)]
    read = RecordedTrajectory.from_bytes(RecordedTrajectory(branches, RewardSources([1.0])).to_bytes())
    for before, after in zip(branches, read.branches, strict=True):
        assert after.teacher_logprobs is not None
        said = np.full(4, np.nan, np.float32) if before.teacher_logprobs is None else before.teacher_logprobs
        assert after.teacher_logprobs.tobytes() == said.tobytes()
    untaught = RecordedTrajectory.from_bytes(RecordedTrajectory([branch(None)], RewardSources([1.0])).to_bytes())
    assert untaught.branches[0].teacher_logprobs is None

"""The figures of an evaluation whose seeds are played several times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synth.judging.settings import JudgeModel, Judging
from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.metrics import collection_metrics, evaluation_metrics, repeated_metrics


def rollout(seed: int, reward: float, environment: float) -> ScoredRollout:
    return ScoredRollout("r", seed, seed, reward, [reward], [], 1.0, 1, {"env": environment})


ROLLOUTS = [rollout(1, 1.0, 0.0), rollout(1, 0.5, 1.0), rollout(2, 0.0, 0.0), rollout(2, 0.5, 0.0)]


def figures(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if "@" in name and "_" not in name}


def test_an_evaluation_says_mean_at_k_and_pass_at_k_with_their_intervals():
    found = evaluation_metrics(ROLLOUTS, failed=0, rewards=RewardSettings(), rollouts_per_seed=2, success_threshold=1.0)
    assert figures(found) == {"mean@2": 0.5, "pass@1": 0.25, "pass@2": 0.5}
    assert found["mean@2_low"] < 0.5 < found["mean@2_high"]
    assert found["reward_mean"] == 0.5


def test_a_judged_rollout_succeeds_by_what_its_environment_paid():
    judged = RewardSettings(scores="judges", judging=Judging(judges=[JudgeModel(model="m")]))
    found = repeated_metrics(ROLLOUTS, rewards=judged, rollouts_per_seed=2, success_threshold=1.0)
    assert found["mean@2"] == 0.5
    assert (found["pass@1"], found["pass@2"]) == (pytest.approx(0.25), 0.5)
    environment_pays_half = repeated_metrics(ROLLOUTS, rewards=judged, rollouts_per_seed=2, success_threshold=0.9)
    assert environment_pays_half["pass@2"] == 0.5
    assert repeated_metrics(ROLLOUTS[2:], rewards=judged, rollouts_per_seed=2, success_threshold=0.4)["pass@2"] == 0.0


def test_where_each_seed_is_played_once_and_no_threshold_is_given_there_are_none():
    assert repeated_metrics(ROLLOUTS, rewards=RewardSettings(), rollouts_per_seed=1, success_threshold=None) == {}


def test_a_batch_says_how_many_images_were_dropped():
    rollouts = [replace(one, images_dropped=n) for n, one in enumerate(ROLLOUTS)]
    assert collection_metrics(rollouts, failed=0)["images_dropped"] == 6.0
    assert "images_dropped" not in collection_metrics(ROLLOUTS, failed=0)

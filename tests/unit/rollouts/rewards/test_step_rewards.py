"""Step rewards against vectors that are computed by hand, in the shapes of the published apps."""

from __future__ import annotations

from typing import Any

import pytest

from synth.methods.rewards import RewardSettings, RewardWeights, StepRewards
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded, TaskAppReply, score
from synth.rollouts.rewards.step_rewards import turn_rewards
from synth.taskapp.contract import NotAReward
from tests.unit.rollouts.rewards.test_scoring import SAMPLED, URL


def answer(*steps: dict[str, Any], samples: list[Any] | None = None, **metrics: Any) -> dict[str, Any]:
    """An answer of one trajectory."""
    trajectory: dict[str, Any] = {"steps": list(steps)}
    if samples is not None:
        trajectory["decision_samples"] = samples
    return {"trajectories": [trajectory], "metrics": {"outcome_score": 9.0} | metrics}


def decided(unique: float, every: float) -> dict[str, Any]:
    """A step of the published Crafter app, which counts achievements."""
    return {"info": {"meta": {"decision_rewards": {"turn": 1, "unique_delta": unique, "ach_delta": every}}}}


COUNTS = answer(decided(1, 2), decided(0, 1), decided(2, 2))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 0, 2]),
        ({"kind": "absolute"}, [2, 1, 2]),
        # 0.5 for each decision that reached something new.
        ({"indicator_lambda": 0.5}, [1.5, 0, 2.5]),
        ({"kind": "absolute", "indicator_lambda": 0.5}, [2.5, 1, 2.5]),
        # 0.1 · (3 − t) for t = 0 and t = 2.
        ({"beta": 0.1}, [1.3, 0, 2.1]),
        ({"indicator_lambda": 0.5, "beta": 0.1}, [1.8, 0, 2.6]),
    ],
)
def test_counts_of_achievements(settings: dict[str, Any], expected: list[float]):
    found = turn_rewards(COUNTS, StepRewards(mode="decision_stepwise", **settings), calls=3)
    assert found == pytest.approx(expected)


def test_the_apps_own_figure_comes_before_its_counts_and_already_has_the_factor():
    stepwise = {"info": {"stepwise": {"reward": 0.8, "indicator": 1}} | decided(1, 1)["info"]}
    settings = StepRewards(mode="decision_stepwise", indicator_lambda=0.5, beta=0.1)
    assert turn_rewards(answer(stepwise), settings, calls=1) == pytest.approx([0.9])
    samples = [{"decision_index": 0, "r_i": 0.2, "indicator": 0}, {"decision_index": 2, "r_i": 0.6, "indicator": 1}]
    # The second decision is of the third call; T is the number of decisions.
    found = turn_rewards(answer(stepwise, samples=samples), settings, calls=3)
    assert found == pytest.approx([0.2, 0, 0.7])
    # What every time counts is not in that figure.
    absolute = StepRewards(mode="decision_stepwise", kind="absolute")
    assert turn_rewards(answer(stepwise, samples=samples), absolute, calls=1) == [1.0]


def test_what_the_environment_paid_belongs_to_the_call_that_the_step_names():
    steps = [
        {"reward": 1.0, "after_call": 1},
        {"reward": 0.5, "after_call": 1},
        {"reward": None, "obs": {"reward_last_step": 0.25}, "after_call": 2},
        {"reward": -1.0, "after_call": 3},
    ]
    assert turn_rewards(answer(*steps), StepRewards(mode="env_sparse"), calls=3) == [1.5, 0.25, -1.0]
    unnamed = [{"reward": r} for r in (1.0, 0.5, 0.25)]
    assert turn_rewards(answer(*unnamed), StepRewards(mode="env_sparse"), calls=3) == [1.0, 0.5, 0.25]
    # More steps than calls, and nothing says which made which: they are all there, in the last one.
    assert turn_rewards(answer(*unnamed), StepRewards(mode="env_sparse"), calls=2) == [0.0, 1.75]


def test_no_step_rewards_are_none_and_not_a_zero():
    for mode in ("decision_stepwise", "env_sparse"):
        assert turn_rewards(answer({"obs": "sand", "info": None}), StepRewards(mode=mode), calls=1) is None
        assert turn_rewards({"trajectories": "none"}, StepRewards(mode=mode), calls=1) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "much", "0.5", [1], {}, 10**400])
def test_a_step_reward_that_is_no_number_is_an_error_of_the_environment(value: Any):
    body = answer({"reward": value})
    with pytest.raises(NotAReward, match=r"steps\[\]\.reward is .*; expected a finite number"):
        turn_rewards(body, StepRewards(mode="env_sparse"), calls=1)
    rewards = RewardSettings(steps=StepRewards(mode="env_sparse"))
    found = score(TaskAppReply(200, body), [SAMPLED], url=URL, failure_reward=0.0, rewards=rewards)
    assert isinstance(found, EnvironmentFailed)


def test_a_step_reward_that_is_true_is_one():
    assert turn_rewards(answer({"reward": True}, {"reward": False}), StepRewards(mode="env_sparse"), calls=2) == [1, 0]
    samples = {"trajectories": [{"decision_samples": [{"r_i": True}, {"r_i": False}]}]}
    assert turn_rewards(samples, StepRewards(mode="decision_stepwise"), calls=2) == [1.0, 0.0]


def scored(body: Any, rewards: RewardSettings, *, calls: int = 3) -> Rewarded:
    found = score(TaskAppReply(200, body), [SAMPLED] * calls, url=URL, failure_reward=-1.0, rewards=rewards)
    assert isinstance(found, Rewarded)
    return found


def test_the_reward_is_the_sum_of_the_steps_in_place_of_the_outcome():
    found = scored(COUNTS, RewardSettings(steps=StepRewards(mode="decision_stepwise")))
    assert (found.sources.environment, found.steps_missing) == ([1.0, 0.0, 2.0], False)


def test_an_answer_without_steps_has_its_episodes_reward_and_says_so():
    found = scored(answer(), RewardSettings(steps=StepRewards(mode="decision_stepwise")))
    assert (found.sources.environment, found.steps_missing) == ([0.0, 0.0, 9.0], True)


def test_a_policy_that_failed_earned_the_jobs_failure_reward_whatever_its_steps_were_paid():
    failed = answer(decided(1, 1), outcome_score=None) | {"aborted": True}
    found = scored(failed, RewardSettings(steps=StepRewards(mode="decision_stepwise")))
    assert (found.outcome, found.sources.environment) == ("policy_failure", [0.0, 0.0, -1.0])


def test_the_apps_own_scores_are_blended_by_the_weights():
    rewards = RewardSettings(weights=RewardWeights(env=0.2, event=0.4, outcome=0.3), scores="task_app")
    found = scored(answer(mean_return=5.0, events_score=2.0), rewards)
    assert found.sources.sums() == {"env": 5.0, "event": 2.0, "outcome": 9.0}
    assert found.sources.turns(rewards.weights) == pytest.approx([0, 0, 0.2 * 5 + 0.4 * 2 + 0.3 * 9])
    lacking = TaskAppReply(200, answer(mean_return=5.0))
    failed = score(lacking, [SAMPLED], url=URL, failure_reward=0.0, rewards=rewards)
    assert isinstance(failed, EnvironmentFailed)
    assert "metrics.events_score" in failed.problem.what

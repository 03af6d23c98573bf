"""Whose fault it is: a reward, the policy's failure, or the environment's error."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from synth.methods.rewards import RewardSettings, RewardWeights
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded, TaskAppReply
from synth.rollouts.rewards.scoring import score as score_by
from synth.trajectories import CompletionRecord, RewardSources

URL = "http://127.0.0.1:8001/rollout"
SAMPLED = CompletionRecord(
    prompt_ids=np.array([1, 2], np.int32),
    sampled_ids=np.array([3], np.int32),
    logprobs=np.array([-0.1], np.float32),
    versions=np.array([0], np.int32),
    sampled=np.array([True]),
    finish_reason="stop",
)

score = partial(score_by, rewards=RewardSettings())


def scored(status: int, body: Any, *, sampled: bool = True) -> Rewarded | EnvironmentFailed:
    return score(
        TaskAppReply(status, body),
        [SAMPLED] if sampled else [],
        url=URL,
        failure_reward=-0.25,
        rewards=RewardSettings(),
    )


@pytest.mark.parametrize(
    "metrics",
    [
        {"outcome_score": 0.5, "mean_return": 9},
        {"outcome_score": None, "mean_return": 0.5},
        {"episode_returns": [0.5, 1]},
        {"outcome_score": None, "episode_returns": [0.5]},
    ],
)
def test_the_reward_is_the_outcome_score_or_else_the_return(metrics: dict[str, Any]):
    assert scored(200, {"metrics": metrics}) == Rewarded(RewardSources([0.5]), "ok")


@pytest.mark.parametrize("field", ["outcome_score", "mean_return", "episode_returns"])
@pytest.mark.parametrize(("value", "reward"), [(True, 1.0), (False, 0.0), (1, 1.0), (-0.5, -0.5)])
def test_a_reward_that_is_true_is_one_and_false_is_zero(field: str, value: Any, reward: float):
    metrics = {field: [value] if field == "episode_returns" else value}
    assert scored(200, {"metrics": metrics}) == Rewarded(RewardSources([reward]), "ok")


def test_a_score_of_the_apps_own_that_is_true_is_one():
    rewards = RewardSettings(scores="task_app", weights=RewardWeights(env=1, event=1, outcome=1))
    metrics = {"mean_return": False, "events_score": True, "outcome_score": True}
    result = score(TaskAppReply(200, {"metrics": metrics}), [SAMPLED], url=URL, failure_reward=0.0, rewards=rewards)
    assert result == Rewarded(RewardSources([0.0], events=[1.0], outcome=1.0), "ok")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0.5", '"0.5"'),
        ("true", '"true"'),
        ("NaN", '"NaN"'),
        ("", '""'),
        ("x" * 1000, f'"{"x" * 40}…"'),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ([0.5], "a list"),
        ({"score": 1}, "an object"),
        (10**400, "an integer that no float holds"),
    ],
)
@pytest.mark.parametrize("field", ["outcome_score", "mean_return", "episode_returns[0]"])
def test_a_reward_that_is_no_number_is_refused_with_its_field_and_value(field: str, value: Any, shown: str):
    name, listed = field.removesuffix("[0]"), field.endswith("[0]")
    result = scored(200, {"metrics": {name: [value] if listed else value}})
    assert isinstance(result, EnvironmentFailed)
    assert result.problem.what == f"metrics.{field} is {shown}"
    assert result.problem.expected == "a finite number, true or false"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"detail": "policy_step_failed: no tool calls"}),
        (502, {"detail": {"error": "no_tool_calls_executed"}}),
        (200, {"metrics": {"outcome_score": None}, "aborted": {"reason": "policy_failure"}}),
    ],
)
def test_the_policys_own_failure_is_a_reward_and_is_not_tried_again(status: int, body: Any):
    found = scored(status, body)
    assert isinstance(found, Rewarded)
    assert (found.sources.environment, found.outcome) == ([-0.25], "policy_failure")


def test_an_error_after_a_reply_that_was_cut_off_is_the_policys():
    cut = replace(SAMPLED, finish_reason="length")
    found = score(
        TaskAppReply(500, {"detail": "JSONDecodeError"}), [cut], url=URL, failure_reward=0.0, rewards=RewardSettings()
    )
    assert isinstance(found, Rewarded)


def test_an_error_after_a_tool_call_that_cannot_be_read_is_the_policys():
    malformed = replace(SAMPLED, malformed_call=True)
    body = {"detail": {"error": {"code": "environment_error", "message": "TypeError: 'NoneType' is not subscriptable"}}}
    found = score(TaskAppReply(500, body), [SAMPLED, malformed], url=URL, failure_reward=-1.0)
    assert isinstance(found, Rewarded)
    assert (found.sources.environment, found.outcome) == ([0.0, -1.0], "policy_failure")
    assert isinstance(
        score(TaskAppReply(500, body), [malformed, SAMPLED], url=URL, failure_reward=0.0),
        EnvironmentFailed,
    )


@pytest.mark.parametrize(("status", "code"), [(502, "inference_unavailable"), (500, "bad_outcome")])
@pytest.mark.parametrize("last", [{"malformed_call": True}, {"finish_reason": "length"}])
def test_a_model_that_is_away_and_an_episode_without_a_reward_are_never_the_policys(
    status: int, code: str, last: dict[str, Any]
):
    body = {"detail": {"error": {"code": code, "message": "the episode returned nothing"}}}
    found = score(TaskAppReply(status, body), [replace(SAMPLED, **last)], url=URL, failure_reward=0.0)
    assert isinstance(found, EnvironmentFailed)
    assert found.problem.what == f"HTTP {status}: {code}: the episode returned nothing"


def test_the_same_error_without_a_completion_is_the_environments():
    assert isinstance(scored(500, {"detail": "no tool calls"}, sampled=False), EnvironmentFailed)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, {"detail": "KeyError: 'world'"}, "HTTP 500"),
        (500, {"detail": "zip() argument 2 has another length"}, "HTTP 500"),
        (200, {"metrics": {"details": {"episode_length": 3}}, "aborted": False}, "no reward"),
        (0, "no answer within 30 s", "no answer within 30 s"),
        (200, "<html>hello</html>", "not a rollout response"),
        (200, {"metrics": {}}, "no reward"),
        (200, {"metrics": {"outcome_score": None}}, "metrics.outcome_score is null and metrics.mean_return is missing"),
        (200, {"metrics": {"outcome_score": -1e200}}, "reward is -1e+200"),
        (400, {"detail": {"error": {"code": "unauthorised"}}}, "refuses the environment key"),
    ],
)
def test_an_environments_error_is_no_reward_and_says_what_happened(status: int, body: Any, said: str):
    found = scored(status, body)
    assert isinstance(found, EnvironmentFailed)
    assert said in found.problem.text()
    assert URL in found.problem.text()


def test_an_app_that_never_calls_the_model_is_told_so():
    found = scored(200, {"metrics": {"outcome_score": 1.0}}, sampled=False)
    assert isinstance(found, EnvironmentFailed)
    assert "inference_url" in found.problem.text()

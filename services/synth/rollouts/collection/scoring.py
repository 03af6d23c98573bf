"""Scores a task app's answer: a reward, the policy's own failure, or an error of the environment.

Whose fault a failure is decides what happens (decision 24). The policy's failure is a reward and is never tried again,
since trying until it succeeds is biased sampling. An environment's error is no reward: the rollout is tried again, then
dropped. What an app says of tokens is not read: the sampled tokens come from the recorder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from synth.errors import Problem
from synth.trajectories import CompletionRecord

#: Words in the errors of the published task apps when the policy failed, not the environment.
_POLICY_FAILURES = ("no tool calls", "no_tool_calls", "policy_step_failed", "policy_failure")

#: Advantages are fp32, and their standard deviation squares the rewards: larger ones would overflow.
_LARGEST_REWARD = 1e30


@dataclass(frozen=True)
class TaskAppReply:
    """A task app's answer to `POST /rollout`: its HTTP status and its JSON body (its text where that is not JSON).

    status 0: there was no answer, and body says why. timed_out: the reason is that it did not come in time.
    """

    status: int
    body: Any
    timed_out: bool = False


@dataclass(frozen=True)
class Rewarded:
    """The rollout counts. outcome: "ok", or "policy_failure" where the reward is the job's `failure_reward`."""

    reward: float
    outcome: str
    info: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class EnvironmentFailed:
    """The rollout does not count. problem: why."""

    problem: Problem


def score(
    reply: TaskAppReply, records: list[CompletionRecord], *, url: str, failure_reward: float
) -> Rewarded | EnvironmentFailed:
    """The score of one try of a rollout.

    records: what the policy sampled in it. failure_reward: the reward of a try that the policy failed.
    """
    if reply.status != 200:
        return _score_error(reply, records, url=url, failure_reward=failure_reward)
    if not isinstance(reply.body, dict) or not isinstance(reply.body.get("metrics"), dict):
        what = f"the answer is not a rollout response: {str(reply.body)[:100]!r}"
        return _environment_failed(url, what, 'a JSON object with "metrics"')
    metrics: dict[str, Any] = reply.body["metrics"]
    if not records:
        return _environment_failed(
            url,
            "the task app answered without one call of the model",
            "calls at the inference_url of policy.config, query included",
        )
    reward = _read_reward(metrics)
    details = metrics.get("details")
    info: dict[str, Any] = {"details": details} if isinstance(details, dict) else {}
    if reward is None:
        if reply.body.get("aborted") or "policy_failure" in info.get("details", {}):
            return Rewarded(failure_reward, "policy_failure", info)
        return _environment_failed(url, "the answer has no reward", "metrics.outcome_score or metrics.mean_return")
    if not abs(reward) <= _LARGEST_REWARD:
        expected = f"a finite number in metrics.outcome_score, at most {_LARGEST_REWARD:g}"
        return _environment_failed(url, f"the reward is {reward:g}", expected)
    return Rewarded(reward, "ok", info)


def _score_error(
    reply: TaskAppReply, records: list[CompletionRecord], *, url: str, failure_reward: float
) -> Rewarded | EnvironmentFailed:
    if reply.status not in (0, 401, 403) and _is_policy_failure(reply, records):
        return Rewarded(failure_reward, "policy_failure", {"status": reply.status})
    if reply.status in (400, 401, 403) and "unauthori" in str(reply.body).lower():
        return EnvironmentFailed(
            Problem(
                where=url,
                what=f"the task app refuses the environment key (HTTP {reply.status})",
                expected="the key in X-API-Key to be one that it knows",
                fix="start the task app with the cluster's ENVIRONMENT_API_KEY, or add its key with "
                "POST /api/environment-keys",
            )
        )
    text = _error_text(reply.body)[:300]
    what = f"HTTP {reply.status}: {text}" if reply.status else text
    return _environment_failed(url, what, "HTTP 200 with a rollout response")


def _error_text(body: Any) -> str:
    """The words of an error: of the SDK's, `{"detail": {"error": {"code", "message"}}}`, without the braces."""
    inner = body
    for name in ("detail", "error"):
        inner = inner.get(name) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        return f"{inner['code']}: {inner['message']}" if inner.get("code") else inner["message"]
    return str(body)


def _read_reward(metrics: dict[str, Any]) -> float | None:
    for name in ("outcome_score", "mean_return"):
        if (value := _number(metrics.get(name))) is not None:
            return value
    returns = metrics.get("episode_returns")
    return _number(returns[0]) if isinstance(returns, list) and returns else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        # JSON has no NaN: an app that means one often sends the string.
        return math.nan if isinstance(value, str) and value.lower() == "nan" else None
    try:
        return float(value)
    except OverflowError:  # an integer in JSON may have any size
        return math.inf


def _is_policy_failure(reply: TaskAppReply, records: list[CompletionRecord]) -> bool:
    """Whether the policy caused an error: by its last completion, or because the app's error says so.

    A completion that was cut off, or whose tool call cannot be read, is one that an agent may fail on in its own way.
    """
    if not records or _says_unavailable(reply.body):
        return False
    if records[-1].finish_reason == "length" or records[-1].malformed_call:
        return True
    error = reply.body
    if isinstance(error, dict):
        # Only the fields of the error: elsewhere the same words may mean anything.
        error = [error.get(field) for field in ("detail", "error", "code", "message")]
    # A page of text may have the same words anywhere, too.
    text = (error[:300] if isinstance(error, str) else str(error)).lower()
    return any(words in text for words in _POLICY_FAILURES)


def _says_unavailable(body: Any) -> bool:
    """Whether the app's SDK says that the model could not be reached, whatever came before."""
    detail: Any = body.get("detail") if isinstance(body, dict) else None
    error: Any = detail.get("error") if isinstance(detail, dict) else None
    return isinstance(error, dict) and error.get("code") == "inference_unavailable"


def _environment_failed(url: str, what: str, expected: str) -> EnvironmentFailed:
    return EnvironmentFailed(
        Problem(where=url, what=what, expected=expected, fix="look at the task app's own log for this run_id")
    )

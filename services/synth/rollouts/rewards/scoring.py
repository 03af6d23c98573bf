"""The score of a task app's answer: a reward, the policy's own failure, or an error of the environment.

The part at fault decides the handling of a failure (decision 24). The policy's failure is a reward and is never tried
again, because trying until it succeeds is biased sampling. An environment's error is no reward: the rollout is tried
again, then dropped. Tokens in an app's answer are not read: the sampled tokens are taken from the recorder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from synth.chat.json_text import is_too_deep
from synth.errors import Problem
from synth.keys import without_secrets
from synth.methods.rewards import RewardSettings
from synth.rollouts.rewards.step_rewards import turn_rewards
from synth.taskapp.contract import NotAReward, read_reward
from synth.trajectories import CompletionRecord, RewardSources, at_last_turn

#: Words in the errors of the published task apps when the policy failed, not the environment.
_POLICY_FAILURES = ("no tool calls", "no_tool_calls", "policy_step_failed", "policy_failure")

#: Errors of our SDK that no sampled token can cause: no model is available, and an episode without a reward.
_NEVER_THE_POLICYS = ("inference_unavailable", "bad_outcome")

#: Advantages are fp32, and their standard deviation squares the rewards: larger ones would overflow.
LARGEST_REWARD = 1e30


@dataclass(frozen=True)
class UnreadAnswer:
    """The bytes of an answer. secrets: removed when it is read. max_depth: the most levels of nesting."""

    content: bytes
    secrets: tuple[str, ...]
    max_depth: int

    def read(self) -> Any:
        """Return the answer as JSON, or as text. Raises `RecursionError` if it is nested too deeply.

        Apps echo fields of their requests, and a credential must not reach an event.
        """
        content = without_secrets(self.content, self.secrets)
        try:
            answer = json.loads(content)
        except ValueError:
            return content.decode(errors="replace")
        if is_too_deep(answer, self.max_depth):
            # The code that reads the answer is recursive.
            raise RecursionError
        return answer


@dataclass(frozen=True)
class TaskAppReply:
    """A task app's answer to `POST /rollout`: its HTTP status and its JSON body (its text if it is not JSON).

    status 0: there was no answer, and body has the reason. timed_out: it did not arrive in time. crowded: it had no
    room beside the other answers of its organisation. problem: why the environment failed, if the player knows it.
    unread: a large answer, whose body `read` decodes: in a worker process, because decoding may block the event loop
    for seconds.
    """

    status: int
    body: Any
    timed_out: bool = False
    crowded: bool = False
    problem: Problem | None = None
    unread: UnreadAnswer | None = None

    @property
    def size(self) -> int:
        """The number of bytes that `read` has to decode."""
        return len(self.unread.content) if self.unread is not None else 0

    def read(self) -> TaskAppReply:
        """Return the reply with its body decoded. An answer that is nested too deeply counts as none: status 0."""
        if self.unread is None:
            return self
        try:
            return replace(self, body=self.unread.read(), unread=None)
        except RecursionError:
            what = f"the answer is nested deeper than {self.unread.max_depth} levels (SYNTH_MAX_ANSWER_DEPTH)"
            return TaskAppReply(0, what)


@dataclass(frozen=True)
class Rewarded:
    """A rollout that counts. outcome: "ok", or "policy_failure" if its reward is the job's `failure_reward`.

    sources: its rewards. steps_missing: the job rewards single turns and the answer has no such rewards, so that the
    last turn has the reward of the episode.
    """

    sources: RewardSources
    outcome: str
    steps_missing: bool = False
    info: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class EnvironmentFailed:
    """A rollout that does not count. problem: the reason."""

    problem: Problem


def score(
    reply: TaskAppReply,
    records: list[CompletionRecord],
    *,
    url: str,
    failure_reward: float,
    rewards: RewardSettings,
) -> Rewarded | EnvironmentFailed:
    """Score one try of a rollout.

    records: the policy's samples in it. failure_reward: the reward of a try that the policy failed.
    """
    if reply.problem is not None:
        return EnvironmentFailed(reply.problem)
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
    details = metrics.get("details")
    info: dict[str, Any] = {"details": details} if isinstance(details, dict) else {}
    turns = len(records)
    try:
        steps = turn_rewards(reply.body, rewards.steps, calls=turns) if rewards.steps is not None else None
        episode, scores = _read_episode(metrics, rewards), _own_scores(metrics, rewards)
    except NotAReward as error:
        what, _, expected = str(error).partition("; expected ")
        return _environment_failed(url, what, expected)
    if episode is None and (reply.body.get("aborted") or "policy_failure" in info.get("details", {})):
        # This holds also if steps before the failure had rewards.
        return _policy_failure(failure_reward, turns, info)
    reward = sum(steps) if steps is not None else episode
    if reward is None:
        names = ("outcome_score", "mean_return")
        fields = " and ".join(f"metrics.{name} is {'null' if name in metrics else 'missing'}" for name in names)
        return _environment_failed(url, f"the answer has no reward: {fields}", _reward_fields(rewards))
    for name, value in {"reward": reward, **scores}.items():
        if value is None:
            return _environment_failed(
                url, f"the answer has no metrics.{name}, which [rubric.weights] pays", "a number"
            )
        if not abs(value) <= LARGEST_REWARD:
            where = _reward_fields(rewards) if name == "reward" else f"metrics.{name}"
            expected = f"a finite number in {where}, at most {LARGEST_REWARD:g}"
            return _environment_failed(url, f"the {name} is {value:g}", expected)
    events = scores.get("events_score")
    return Rewarded(
        RewardSources(
            environment=steps or at_last_turn(reward, turns),
            events=None if events is None else at_last_turn(events, turns),
            outcome=scores.get("outcome_score"),
        ),
        "ok",
        steps_missing=rewards.steps is not None and steps is None,
        info=info,
    )


def _policy_failure(reward: float, turns: int, info: dict[str, Any]) -> Rewarded:
    return Rewarded(RewardSources(at_last_turn(reward, turns)), "policy_failure", info=info)


def _own_scores(metrics: dict[str, Any], rewards: RewardSettings) -> dict[str, float | None]:
    """Return the app's own scores that have a weight in the job, by metric; None for a missing score."""
    if rewards.scores != "task_app":
        return {}
    paid = {"events_score": rewards.weights.event, "outcome_score": rewards.weights.outcome}
    values = {name: metrics.get(name) for name, weight in paid.items() if weight}
    return {name: None if value is None else read_reward(value, f"metrics.{name}") for name, value in values.items()}


def _score_error(
    reply: TaskAppReply, records: list[CompletionRecord], *, url: str, failure_reward: float
) -> Rewarded | EnvironmentFailed:
    if any(record.out_of_time for record in records):
        # An error after a reply that was cut off, or after the refusal of a further one, is the policy's failure.
        return _policy_failure(failure_reward, len(records), {"status": reply.status, "out_of_time": True})
    if reply.status not in (0, 401, 403) and _is_policy_failure(reply, records):
        return _policy_failure(failure_reward, len(records), {"status": reply.status})
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
    """Return the text of an error: code and message of an SDK error, `{"detail": {"error": {…}}}`, else the body."""
    inner = body
    for name in ("detail", "error"):
        inner = inner.get(name) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        return f"{inner['code']}: {inner['message']}" if inner.get("code") else inner["message"]
    return str(body)


def _read_episode(metrics: dict[str, Any], rewards: RewardSettings) -> float | None:
    # If the outcome's score has a weight of its own, the environment's part is the return of its episode.
    for name in ("mean_return",) if _pays_outcome_apart(rewards) else ("outcome_score", "mean_return"):
        if metrics.get(name) is not None:
            return read_reward(metrics[name], f"metrics.{name}")
    returns = metrics.get("episode_returns") or []
    if not isinstance(returns, list):
        return read_reward(returns, "metrics.episode_returns")
    if returns and returns[0] is not None:
        return read_reward(returns[0], "metrics.episode_returns[0]")
    return 0.0 if _pays_outcome_apart(rewards) and not rewards.weights.env else None


def _pays_outcome_apart(rewards: RewardSettings) -> bool:
    return rewards.scores == "task_app" and rewards.weights.outcome > 0


def _reward_fields(rewards: RewardSettings) -> str:
    return "metrics.mean_return" if _pays_outcome_apart(rewards) else "metrics.outcome_score or metrics.mean_return"


def _is_policy_failure(reply: TaskAppReply, records: list[CompletionRecord]) -> bool:
    """Return whether the policy caused an error, by its last completion or by the words of the app's error.

    An agent may fail in its own way on a completion that was cut off, or whose tool call cannot be read.
    """
    if not records or _sdk_code(reply.body) in _NEVER_THE_POLICYS:
        return False
    if records[-1].finish_reason == "length" or records[-1].malformed_call:
        return True
    error = reply.body
    if isinstance(error, dict):
        # Only the fields of the error are read: elsewhere the same words may mean anything.
        error = [error.get(field) for field in ("detail", "error", "code", "message")]
    # A long text may contain the same words by chance, so only its beginning is read.
    text = (error[:300] if isinstance(error, str) else str(error)).lower()
    return any(words in text for words in _POLICY_FAILURES)


def _sdk_code(body: Any) -> Any:
    """Return the code of an error of the app's SDK; None for another body."""
    detail: Any = body.get("detail") if isinstance(body, dict) else None
    error: Any = detail.get("error") if isinstance(detail, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _environment_failed(url: str, what: str, expected: str) -> EnvironmentFailed:
    return EnvironmentFailed(
        Problem(where=url, what=what, expected=expected, fix="look at the task app's own log for this run_id")
    )

"""The task-app contract: the platform's requests to an environment, and the environment's answers.

Extra fields are accepted in both directions: real task apps and real trainers send more than this.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, SupportsFloat, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

Object = dict[str, Any]


class NotAReward(ValueError):
    """A value in the place of a reward is not a finite number."""


def read_reward(value: Any, field: str) -> float:
    """Return a reward as a number: true is 1 and false is 0. Raises `NotAReward` with the field and the value."""
    number = math.nan
    if isinstance(value, SupportsFloat):
        try:
            number = float(value)
        except OverflowError:  # an integer in JSON may have any size
            number = math.inf
        except (TypeError, ValueError, RuntimeError):
            pass  # an array or a tensor of several numbers
    if not math.isfinite(number):
        raise NotAReward(f"{field} is {_shown(value)}; expected a finite number, true or false")
    return number


def _shown(value: Any) -> str:
    match value:
        case list() | dict():
            return "a list" if isinstance(value, list) else "an object"
        case None | float():
            return json.dumps(value)
        case int():
            return "an integer that no float holds"
        case _:
            text = str(value)
            return json.dumps(text if len(text) <= 40 else f"{text[:40]}…", ensure_ascii=False)


def _validate_reward(value: Any, info: ValidationInfo) -> float | None:
    return None if value is None else read_reward(value, str(info.field_name))


Reward = Annotated[float | None, BeforeValidator(_validate_reward)]


class Wire(BaseModel):
    """A body of the contract: unknown fields are kept."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class EnvSpec(Wire):
    """Which environment, on which seed."""

    env_name: str | None = None
    env_id: str | None = None
    config: Object = Field(default_factory=dict)
    seed: int | None = None


class PolicySpec(Wire):
    """Which policy, and its config: `model`, `inference_url`, `trace_correlation_id`, sampling, …"""

    policy_name: str | None = None
    policy_id: str | None = None
    config: Object = Field(default_factory=dict)


class RecordSpec(Wire):
    """The parts of the rollout to send back."""

    trajectories: bool = True
    logprobs: bool = False
    value: bool = False
    return_trace: bool = False
    trace_format: Literal["compact", "full", "structured"] = "compact"


class Safety(Wire):
    """Bounds on one rollout. max_time_s: seconds."""

    max_ops: int = 100_000
    max_time_s: float = 3600.0


class RolloutRequest(Wire):
    """`POST /rollout`. run_id is unique and becomes the trace's session id."""

    run_id: str
    mode: Literal["rl", "eval"] = "rl"
    env: EnvSpec
    policy: PolicySpec
    ops: list[Any] = Field(default_factory=list[Any])
    record: RecordSpec = RecordSpec()
    on_done: Literal["reset", "terminate"] = "reset"
    safety: Safety = Safety()
    training_session_id: str | None = None
    synth_base_url: str | None = None


class Step(Wire):
    """One decision. reward: None when the environment paid nothing for this step in particular.

    after_call: the number of calls of the model before it, for people who read the rollout; None if it is not known.
    """

    obs: Any = None
    tool_calls: list[Any] = Field(default_factory=list[Any])
    reward: Reward = None
    done: bool = False
    truncated: bool | None = None
    info: Object | None = None
    after_call: int | None = None


class Trajectory(Wire):
    """The steps of one episode."""

    env_id: str
    policy_id: str
    steps: list[Step]
    final: Object | None = None
    length: int
    inference_url: str | None = None
    decision_samples: list[Object] | None = None


class Metrics(Wire):
    """The rewards of the rollout. `outcome_score`, else `mean_return`, is the reward; all None: the policy failed."""

    episode_returns: list[Reward] = Field(default_factory=list[Reward])
    mean_return: Reward = None
    num_steps: int = 0
    num_episodes: int = 1
    outcome_score: Reward = None
    events_score: Reward = None
    details: Object = Field(default_factory=dict)


class RolloutResponse(Wire):
    """The answer to `POST /rollout`. aborted: the policy failed; `metrics.details.policy_failure` has the reason."""

    run_id: str
    trajectories: list[Trajectory]
    branches: Object | None = None
    metrics: Metrics
    aborted: bool = False
    ops_executed: int = 0
    trace_correlation_id: str | None = None
    trace: Object | None = None
    pipeline_metadata: Object | None = None

    def reward(self) -> float | None:
        """Return the rollout's reward; None if the app reports none (a failure of the policy)."""
        metrics = self.metrics
        if metrics.outcome_score is not None:
            return metrics.outcome_score
        if metrics.mean_return is not None:
            return metrics.mean_return
        return metrics.episode_returns[0] if metrics.episode_returns else None

    def policy_failure(self) -> Object | None:
        """Return the policy's failure, `{"code", "message"}`, if it ended the rollout; else None."""
        failure: Any = self.metrics.details.get("policy_failure")
        return cast(Object, failure) if isinstance(failure, dict) else None


class TaskInfo(Wire):
    """One instance of the task, `GET /task_info?seed=…`; values may be anything, real apps differ widely."""

    task: Any = None
    environment: Any = None
    dataset: Any = None
    rubric: Any = None
    inference: Any = None
    limits: Any = None
    task_metadata: Any = None


class Health(Wire):
    """`GET /health`."""

    healthy: bool = True

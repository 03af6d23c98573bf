"""The settings of rollouts that RL jobs and evaluations share, with every default applied."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from synth.tables.keys import Fraction, JobSettings, Name, Names, NonNegative, Positive, PositiveFloat, keys


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How replies are sampled. max_tokens: a call. top_p 1 and top_k 0 are off; thinking None: the app's choice."""

    temperature: float = 1.0
    max_tokens: int = 512
    top_p: float = 1.0
    top_k: int = 0
    thinking: bool | None = None
    thinking_budget: int | None = None


@keys
class RolloutKeys:
    """Keys of `[rollout]`, and of `[eval]`: how a task app plays a rollout."""

    __slots__ = ()

    env_name: Name | None = None
    """the environment that the task app is to play; default: the app's own"""
    policy_name: Name = "policy"
    """the name of the policy, which is sent to the task app"""
    max_turns: Positive = 1
    """calls of the model in a rollout; if it is not set, `[training] max_turns`, else `policy_config.max_llm_calls`
    decides"""
    ops: Names = ("agent", "env")
    """what one turn consists of"""
    failure_reward: float = 0.0
    """reward of a rollout in which the policy itself failed (no tool call, a reply cut off); never retried"""
    rollout_timeout_s: PositiveFloat = 300.0
    """seconds that the rollout may take, without the time in which its policy waits for the engine's queue, the device
    or new weights; the reply that is being sampled ends then and is trained, and an app that does not answer even so is
    an error of the environment"""
    max_retries: NonNegative = 3
    """how often a rollout is tried again after an error of the environment or of the connection"""


@keys
class RlRolloutKeys(RolloutKeys):
    """Keys of `[rollout]` of RL."""

    __slots__ = ()

    group_timeout_s: PositiveFloat | None = None
    """seconds after which a group no longer waits for its slow rollouts, counted from when all of them are under way:
    it is trained with the finished ones if two or more have finished, and is dropped otherwise; default: off, as slow
    rollouts are often the long ones"""
    trace_rate: Fraction = 0.1
    """the share of training rollouts whose trace is kept; evaluations and judged jobs keep every trace"""
    max_concurrent_rollouts: Positive = 64
    """the most concurrent rollouts at the task app, over the whole cluster; the run itself finds the best number up to
    it"""

    constrain_tools: bool = False
    """whether a `tool_choice` that the task app forces is enforced: the tokens that force it are not trained"""


@keys
class RepeatKeys:
    """Keys of `[evaluation]` and of `[eval]`: the rollouts of a seed."""

    __slots__ = ()

    rollouts_per_seed: Positive = 1
    """rollouts of each seed, sampled independently; above 1, `mean@k` and `pass@k` are reported"""
    success_threshold: float | None = None
    """the least reward of the environment that `pass@k` counts as a success; default: 1 if `rollouts_per_seed` is above
    1, else there is no `pass@k`"""


class RolloutSettings(RlRolloutKeys, JobSettings, frozen=True, kw_only=True):
    """How a task app is driven."""

    task_url: str = ""
    """the task app's address; empty if the job has none"""
    env_config: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """passed on unchanged; in evaluations, the keys of evaluation_env_config replace its own"""
    policy_config: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """the keys of the file beside the sampling, passed on unchanged"""
    sampling: Sampling = Sampling()
    evaluations_traced: bool = True
    """whether the rollouts of evaluations keep their traces"""
    evaluation_env_config: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    @property
    def sampled_tokens(self) -> int:
        """The most tokens that are sampled in a rollout."""
        return self.max_turns * self.sampling.max_tokens

    def longest_s(self, rollouts: int) -> float:
        """Return the most seconds that so many rollouts take, if each needs all of its tries and all of their time."""
        turns = -(-rollouts // self.max_concurrent_rollouts)
        return turns * (1 + self.max_retries) * self.rollout_timeout_s


class GradedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts without a task app: one reply to each row's messages, with the reward of a grader.

    grader: as `synth.graders.schema.parse_grader` reads it. training_file: the seeds of training are row numbers of
    this file, from 0; validation_file: the same for evaluations, if it is another file.
    """

    grader: dict[str, Any]
    training_file: str
    validation_file: str | None

    def file_of(self, mode: str) -> Literal["training_file", "validation_file"]:
        """Return the file whose rows the rollouts of a request play. mode: "train" or "eval"."""
        return "validation_file" if mode == "eval" and self.validation_file is not None else "training_file"


class EvaluationSettings(RepeatKeys, JobSettings, frozen=True, kw_only=True):
    """Rollouts on fixed seeds before the first iteration, after every `every_n_iters` iterations, and at the end."""

    every_n_iters: int
    seeds: list[int]

"""The settings of rollouts that RL jobs and evaluations share, with every default applied."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How replies are sampled. max_tokens: a call. top_p 1 and top_k 0 are off; thinking None: the app's choice."""

    temperature: float = 1.0
    max_tokens: int = 512
    top_p: float = 1.0
    top_k: int = 0
    thinking: bool | None = None
    thinking_budget: int | None = None


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a task app is driven; task_url is empty if the job has none.

    policy_config: the keys of the file beside the sampling, passed on unchanged. env_config: passed on unchanged; in
    evaluations, the keys of evaluation_env_config replace its own. env_name: None leaves it to the task app.
    max_concurrent_rollouts: over the whole cluster. rollout_timeout_s: seconds of a try. group_timeout_s: seconds after
    which a group no longer waits for its running rollouts, counted from when all of them are under way; None waits for
    all. max_retries: after errors of the environment; a failure of the policy earns failure_reward and is never retried
    (decision 24). constrain_tools: whether a tool call that the app insists on is forced, by tokens that are not
    trained (decision 25). trace_rate: the share of training rollouts that keep a trace. evaluations_traced: whether the
    rollouts of evaluations keep theirs.
    """

    task_url: str = ""
    env_name: str | None = None
    policy_name: str = "policy"
    max_turns: int = 1
    ops: list[str] = msgspec.field(default_factory=lambda: ["agent", "env"])
    env_config: dict[str, Any] = {}
    policy_config: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    max_concurrent_rollouts: int = 64
    failure_reward: float = 0.0
    rollout_timeout_s: float = 300.0
    max_retries: int = 3
    group_timeout_s: float | None = None
    constrain_tools: bool = False
    trace_rate: float = 0.1
    evaluations_traced: bool = True
    evaluation_env_config: dict[str, Any] = {}

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


class EvaluationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts on fixed seeds before the first iteration, after every `every_n_iters` iterations, and at the end.

    rollouts_per_seed: of each seed. success_threshold: the least reward that pass@k takes for a success; None: there is
    no pass@k.
    """

    every_n_iters: int
    seeds: list[int]
    rollouts_per_seed: int = 1
    success_threshold: float | None = None

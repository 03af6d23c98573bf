"""The TOML of an evaluation: one `[eval]` table, or the same keys at the top."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from synth.jobs.sections import (
    Free,
    Name,
    NonNegative,
    NonNegativeFloat,
    PolicyConfig,
    Positive,
    PositiveFloat,
    Section,
    SeedSet,
    Tags,
)


class Eval(Section):
    """`[eval]`: rollouts of one model over fixed seeds."""

    app_id: Name | None = None
    """the task app's id, checked against what the app says of itself"""
    model: Name | None = None
    """a base or fine-tuned model's id; `--model` replaces it"""
    task_app_url: Name | None = None
    """the task app's address; `--task-url` replaces it"""
    seeds: SeedSet | None = None
    """which seeds, one rollout each; a list, "0-99", or {start, count}"""
    concurrency: Positive = 16
    """rollouts at the task app at one time"""
    env_name: Name | None = None
    """the environment that the task app is asked for; `app_id`, else the app's own"""
    policy_name: Name = "policy"
    """the policy that the task app is asked for"""
    max_turns: Positive = 1
    """calls of the model a rollout"""
    ops: list[Name] = Field(default=["agent", "env"])
    """what one turn consists of"""
    temperature: NonNegativeFloat | None = None
    """of the sampling; 1, the policy as it was trained (greedy flatters it)"""
    max_tokens: Positive | None = None
    """sampled tokens a call, at most; 512"""
    env_config: Free = Field(default={})
    """passed to the environment as it is"""
    policy_config: PolicyConfig = PolicyConfig()
    """sampling, and what else the policy wants"""
    failure_reward: float = 0.0
    """reward of a rollout in which the policy itself failed"""
    rollout_timeout_s: PositiveFloat = 300.0
    """seconds until a rollout is given up as an error of the environment"""
    max_retries: NonNegative = 3
    """how often a rollout is tried again after an error of the environment or of the connection"""
    split: Name | None = None
    """of the dataset"""
    trace_format: Literal["compact", "full", "structured"] | None = None
    """of stored traces"""
    return_trace: bool | None = None
    """whether traces are asked for"""
    max_llm_calls: Positive | None = None
    """use `policy_config.max_llm_calls`"""
    policy: Free | None = None
    """the policy in a table"""
    reasoning_effort: str | None = None
    """of hosted models"""
    system_hint: str | None = None
    """added to the system prompt"""
    tool_choice: Any = None
    """of the calls"""
    inference_url: str | None = None
    """where the model is"""
    env_file: str | None = None
    """of the client"""
    metadata: Free | None = None
    """a filter on seeds"""
    metadata_sql: str | None = None
    """the same in SQL"""
    judge: Any = None
    """a scoring function"""
    judges: Any = None
    """scoring functions"""
    tags: Tags = Tags()
    """to find the job by"""


class EvalConfig(Section):
    """An evaluation job."""

    eval: Eval
    tags: Tags = Tags()

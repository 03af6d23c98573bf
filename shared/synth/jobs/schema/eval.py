"""The TOML of an evaluation: one `[eval]` table, or the same keys at the top (older files)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from synth.jobs.schema.rewards import JudgeSection, RubricSection
from synth.jobs.schema.rl import ModelSection
from synth.jobs.schema.sections import (
    MAX_TOKENS,
    Free,
    PolicyConfigSection,
    RolloutSourcesSection,
    Section,
    SeedSet,
    SightSection,
    TagsSection,
)
from synth.methods.rollouts import RepeatKeys, RolloutKeys
from synth.tables.keys import Fraction, Name, NonNegativeFloat, Positive, PositiveFloat, Seed


class EvalSection(RolloutKeys, RepeatKeys, SightSection, frozen=True):
    """`[eval]`: rollouts of one model over fixed seeds."""

    app_id: Name | None = None
    """the environment that the task app is to play, if `env_name` is not set"""
    model: Name | None = None
    """a base or fine-tuned model's id; `--model` replaces it"""
    task_app_url: Name | None = None
    """the task app's address; `--task-url` replaces it"""
    seeds: SeedSet | None = None
    """which seeds, `rollouts_per_seed` rollouts each; a list, "0-99", or {start, count}"""
    num_episodes: Positive | None = None
    """the number of seeds: the first ones of `seeds`, or without `seeds` those from `seed_start` on"""
    seed_start: Seed = 0
    """first seed, if `seeds` is not set"""
    concurrency: Positive = 16
    """concurrent rollouts at the task app"""
    parallel_episodes: Positive | None = None
    """the same as `concurrency`, in older files"""
    max_llm_calls: Positive | None = None
    """the same as `max_turns`"""
    temperature: NonNegativeFloat = 1.0
    """of the sampling; at 1, the policy as it was trained (greedy flatters it)"""
    max_tokens: Positive = MAX_TOKENS
    """the most sampled tokens in a call"""
    thinking_mode: Literal["think", "no_think"] | None = None
    """whether a thinking model thinks; a Thinking variant, which always does, takes no `no_think`, and an Instruct
    model, which never does, no `think`"""
    thinking_budget: Positive | None = None
    """the most tokens of thought, after which the model has to answer; the app may request fewer"""
    env_config: Free = Field(default={})
    """passed to the environment as it is"""
    policy_config: PolicyConfigSection = PolicyConfigSection()
    """sampling, and what else the policy wants"""
    constrain_tools: bool = True
    """whether a `tool_choice` that the task app forces is enforced; RL enforces it only if its file sets this key"""
    split: Name | None = None
    """of the task app's dataset: given to it as `env.config.split`"""
    trace_format: Literal["compact", "full", "structured"] | None = None
    """of the client's copy of a trace; a trace is stored whole, and exported in any format"""
    return_trace: bool | None = None
    """whether the whole traces of all rollouts are kept; default: true"""
    provider: Name | None = None
    """of another service's models"""
    max_images_per_message: Positive | None = None
    """images that a message keeps, the first ones, for a vision model; default: 1, as in training"""
    max_steps: Positive | None = None
    """steps of the environment: given to the task app as `env.config.max_steps`"""
    max_steps_per_episode: Positive | None = None
    """steps of the environment: given to the task app as `env.config.max_steps_per_episode`"""
    collect_traces: bool | None = None
    """the same as `return_trace`"""
    trace_db: Name | None = None
    """the path of the client's copies of traces"""
    use_tools: bool | None = None
    """whether the model may call tools: given to the task app as `policy.config.use_tools`"""
    policy: PolicyConfigSection | None = None
    """the same as `policy_config`, which comes before it"""
    reasoning_effort: str | None = None
    """how long hosted models think: given to the task app as `policy.config.reasoning_effort`"""
    system_hint: str | None = None
    """added to the system prompt: given to the task app as `policy.config.system_hint`"""
    tool_choice: Any = None
    """which tool is called: given to the task app as `policy.config.tool_choice`"""
    inference_url: str | None = None
    """the address of the model"""
    env_file: str | None = None
    """of the client"""
    metadata: Free | None = None
    """a filter on seeds, which is not applied here: list the seeds themselves"""
    metadata_sql: str | None = None
    """the same in SQL"""
    judge: Any = None
    """a scoring function of the client, which only the client runs: see `[judge]`"""
    judges: Any = None
    """scoring functions of the client, which only the client runs: see `[judge]`"""
    tags: TagsSection = TagsSection()
    """to find the job by"""


class TaskAppSection(Section, frozen=True):
    """`[task_app]`: the task app's address, in older files."""

    url: Name | None = None
    """the same as `task_app_url`"""


class EvalRolloutSection(RolloutKeys, RolloutSourcesSection, frozen=True):
    """`[rollout]` as in an RL file: how a rollout is played. The keys of `[eval]` take precedence."""

    constrain_tools: bool | None = None
    """whether a `tool_choice` that the task app forces is enforced"""
    env_config: Free | None = None
    """passed to the environment as it is"""
    policy_config: PolicyConfigSection | None = None
    """sampling, and what else the policy wants; other than RL's, `top_p` and `top_k` are honoured"""
    max_concurrent_rollouts: Positive | None = None
    """the same as `[eval] concurrency`"""
    episodes_per_batch: Positive | None = None
    """of training"""
    batches_per_step: Positive | None = None
    """of training"""
    group_timeout_s: PositiveFloat | None = None
    """of training: a rollout of an evaluation is waited for until it is given up"""
    trace_rate: Fraction | None = None
    """of training: the traces of evaluations are all kept"""


class EvalTables(Section, frozen=True):
    """The tables that may stand beside the keys of an evaluation."""

    type: Literal["rl", "sft"] | None = None
    """how the model was trained, in older files"""
    policy: PolicyConfigSection | None = None
    """the same as `policy_config`, which comes before it"""
    task_app: TaskAppSection | None = None
    """the task app's address"""
    rollout: EvalRolloutSection | None = None
    """how a rollout goes"""
    env: Free | None = None
    """the same as `env_config`"""
    task: Free | None = None
    """of the script that ran the file"""
    rubric: RubricSection | None = None
    """the weights of the sources of the reward, and the judges' criteria"""
    tags: TagsSection = TagsSection()
    """to find the job by"""


class FlatEvalConfig(EvalSection, EvalTables, frozen=True):
    """An evaluation whose keys stand at the top of the file."""


class EvalConfig(EvalTables, frozen=True):
    """An evaluation job."""

    eval: EvalSection
    model: ModelSection | None = None
    """as in an RL file: `base` or `source` names the evaluated model"""
    judge: JudgeSection | None = None
    """the model that scores the rollouts"""

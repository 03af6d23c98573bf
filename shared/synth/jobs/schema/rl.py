"""The TOML of an RL job. Names are the published client's; keys that it does not have are named by this project."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from synth.jobs.schema.correction import CorrectionSection
from synth.jobs.schema.distillation import DistillationSection
from synth.jobs.schema.plugins import LossName, PluginName
from synth.jobs.schema.rewards import JudgeSection, RewardsSection, RubricSection
from synth.jobs.schema.sections import (
    AlgorithmSection,
    ComputeSection,
    Free,
    LoraSection,
    ModelImagesSection,
    Ops,
    OptimizationSection,
    PolicyConfigSection,
    PolicySection,
    RolloutSourcesSection,
    Section,
    SeedSet,
    TagsSection,
    TopologySection,
)
from synth.jobs.schema.watch import WatchSection
from synth.methods.losses import list_defaults, list_losses
from synth.methods.optimization import OptimizationKeys
from synth.methods.rl import RlKeys
from synth.methods.rollouts import RepeatKeys, RlRolloutKeys
from synth.tables.keys import MAX_ELEMENTS, Name, NonNegative, Positive, PositiveFloat, Seed


class ServicesSection(Section, frozen=True):
    """`[services]`: the services that the job calls."""

    task_url: Name | None = None
    """the task app's address, such as "http://127.0.0.1:8001"; `--task-url` replaces it"""
    judge_url: Name | None = None
    """the address of a judge service; this cluster uses its own judge service instead"""


class LimitPerPromptSection(Section, frozen=True):
    """`[vllm.limit_mm_per_prompt]`: how much of each kind a prompt shows at most."""

    image: Positive | None = None
    """images that a prompt keeps, the latest ones; earlier messages lose their images. None: all images"""
    video: NonNegative | None = None
    """videos; none is ever shown"""


class VllmSection(Section, frozen=True):
    """`[vllm]`: the serving engine's own settings."""

    tensor_parallel_size: Positive | None = None
    """GPUs that one copy of the model is spread over"""
    max_model_len: Positive | None = None
    """tokens of prompt and reply together, at most"""
    limit_mm_per_prompt: LimitPerPromptSection | None = None
    """such as {image = 1}"""


class ReferenceSection(Section, frozen=True):
    """`[reference]`: the frozen model that a KL term is measured against."""

    placement: Literal["none", "shared", "dedicated"] = "none"
    """shared: the policy's own base with its adapter off, or, if every weight is trained, a frozen copy beside the
    policy; dedicated: a frozen copy, on a device of its own if the trainer has one. Both need `[training] kl_beta`"""
    port: Positive | None = None
    """of a reference server"""
    tp: Positive | None = None
    """its tensor parallelism"""
    health_max_wait_s: PositiveFloat | None = None
    """seconds to wait for it"""
    health_interval_ms: Positive | None = None
    """milliseconds between two checks of it"""


class ModelSection(ModelImagesSection, frozen=True):
    """`[model]`: the trained model, and how much of it is trained."""

    base: Name | None = None
    """a base model's id: exactly one of this and `source`"""
    source: Name | None = None
    """a fine-tuned model's id, to continue from: exactly one of this and `base`"""
    trainer_mode: Literal["full", "lora", "qlora"] | None = None
    """full: every weight; lora: an adapter; qlora: one on a base in 4 bits. Default: lora if `[lora]` is given, else
    full"""
    label: str | None = None
    """the job's name, unless `submit --name` gives it one; without either, its file's"""


class RolloutSection(RlRolloutKeys, RolloutSourcesSection, frozen=True):
    """`[rollout]`: how experience is collected."""

    episodes_per_batch: Positive | None = None
    """a hint; an iteration has `[training] batch_size` x `group_size` rollouts"""
    batches_per_step: Positive = 1
    """batches of batch_size groups that an iteration collects and trains on"""
    env_config: Free = Field(default={})
    """passed to the environment as it is"""
    policy_config: PolicyConfigSection = PolicyConfigSection()
    """sampling, and what else the policy wants"""


class EvaluationSection(RepeatKeys, Section, frozen=True):
    """`[evaluation]`: rollouts on fixed seeds that nothing is learned from."""

    instances: Positive | None = None
    """how many seeds; all of `seeds`"""
    every_n_iters: NonNegative = 0
    """iterations between two evaluations; the source model is evaluated before the first iteration, as step 0, and the
    final policy at the end; 0 is never"""
    seeds: SeedSet | None = None
    """which seeds; from 1000000 on, which task apps keep apart from training"""


class WeightSyncSection(Section, frozen=True):
    """`[training.weight_sync]`: how new weights reach the serving engine."""

    enable: Literal[True] | None = None
    """weights are synced after every iteration: without it nothing could be on-policy"""
    targets: Annotated[list[Literal["policy"]], Field(min_length=1, max_length=MAX_ELEMENTS)] | None = None
    """only the policy's weights are synced"""
    mode: str | None = None
    """how weights travel"""
    direct: bool | None = None
    """from GPU to GPU"""
    verify_every_k: NonNegative = 1
    """versions between two whose canary, a few tokens, must have the trainer's log-probabilities at the serving
    engine; 0 is never. Every version is proven by its digests"""
    weight_sync_interval: Literal[1] | None = None
    """the same as `[training] weight_sync_interval`"""


class TrainingSection(RlKeys, OptimizationKeys, OptimizationSection, RewardsSection, frozen=True):
    """`[training]`: the optimization. One iteration = one batch of groups, and one new version of the policy."""

    num_epochs: Positive = 1
    """the job runs num_epochs x iterations_per_epoch iterations"""
    iterations_per_epoch: Positive = 10
    """the job runs num_epochs x iterations_per_epoch iterations"""
    max_turns: Positive | None = None
    """calls of the model in a rollout, if `[rollout] max_turns` is not set"""
    loss: LossName = Field(
        default="gspo",
        description=f"the policy-gradient loss, as in docs/losses.md: {list_losses()}, or a function that the operator "
        'has installed and allowed, as "package.module:function"; if it is not set, `[algorithm] variety` may name one '
        "of the built-in losses",
    )
    clip_low: PositiveFloat | None = Field(
        default=None, description=f"how far down the loss lets the policy go; default: {list_defaults('clip_low')}"
    )
    clip_high: PositiveFloat | None = Field(
        default=None, description=f"how far up the loss lets the policy go; default: {list_defaults('clip_high')}"
    )
    token_truncation: PositiveFloat | None = None
    """how many times more a token may count because the policy that sampled it found it less likely than the one in
    training does; 2, for dppo 20"""
    advantage: PluginName | None = None
    """a function that the operator has installed and allowed, as "package.module:function", in place of (reward - mean)
    / standard deviation: it is given the rewards of a group, and gives each rollout its advantage"""
    overlong_penalty: PositiveFloat | None = None
    """the reward that such a rollout loses with overlong = "penalise"; default: 1. The reported reward does not
    change"""
    max_staleness: Annotated[int, Field(ge=0, le=32)] | None = None
    """versions by which a trained token may be behind: no rollout begins on an older policy, and no older token is
    trained; async_level"""
    async_semaphore_max: Positive | None = None
    """another bound on concurrent rollouts; the smaller one holds. A high bound is safe: the run slows down by
    itself"""
    max_completion_tokens: Positive | None = None
    """the most sampled tokens in a call; the smaller of this and policy_config.max_tokens, else 512"""
    activation_checkpointing: bool = False
    """compute activations twice rather than keep them"""
    lora: LoraSection | None = None
    """the same as `[lora]`"""
    weight_sync: WeightSyncSection | None = None
    """how new weights reach the serving engine"""
    correction: CorrectionSection | None = None
    """the correction for tokens that another policy sampled"""
    solved_after: NonNegative = 5
    """iterations in a row in which every rollout earns the most (1, or the best reward seen on the present seeds if
    that is more): after them the job has succeeded, or continues with the next seeds of `[data] curriculum`; 0 is
    never"""
    watch: WatchSection | None = None
    """signs of a collapsing policy"""
    rewards: RewardsSection | None = None
    """the reward keys of `[training]`, in their own table"""
    gradient_accumulation_steps: Positive | None = None
    """batches an optimizer step; `minibatches` and `micro_batch_tokens` decide this here"""
    max_accumulated_minibatch: Positive | None = None
    """the same in another unit"""
    log_interval: Positive | None = None
    """steps between two logs; here every step is an event"""
    weight_sync_interval: Literal[1] | None = None
    """iterations between two updates of the serving engine: weights are synced after every one"""
    step_rewards_weights: dict[str, float] | None = None
    """weight of each achievement, for the strategy per_achievement: given to the task app"""
    step_rewards_k_limits: dict[str, int] | None = None
    """how often each achievement counts, for the strategy per_achievement: given to the task app"""
    max_images_per_message: Positive | None = None
    """the same as `[model] max_images_per_message`"""
    supports_vision: bool | None = None
    """the same as `[model] supports_vision`"""
    ops: Ops | None = None
    """the same as `[rollout] ops`, in older files"""
    reward_positive: float | None = None
    """of a right answer: given to the task app as `env.config.reward_positive`"""
    reward_negative_no_tool: float | None = None
    """of a reply without a tool call: given to the task app as `env.config.reward_negative_no_tool`"""
    reward_negative_no_answer: float | None = None
    """of a reply without an answer: given to the task app as `env.config.reward_negative_no_answer`"""


class RlJobSection(Section, frozen=True):
    """`[job]`: the rows that a grader's job plays."""

    data: Name | None = None
    """the id of an uploaded file of prompts, for `[grader]`: a seed is the number of a row, from 0"""


class RlDataSection(Section, frozen=True):
    """`[data]`: the seeds that are trained on."""

    validation_path: Name | None = None
    """the id of an uploaded file of prompts, for `[grader]`: the rows that `[evaluation]` plays; `[job].data`'s"""

    seeds: SeedSet | None = None
    """a list, "0-99", or {start, count}; default: 0-99999 without the seeds of `[evaluation]`"""
    curriculum: Annotated[list[SeedSet], Field(min_length=1, max_length=MAX_ELEMENTS)] | None = None
    """sets of harder seeds, each in any form of `seeds`: the next one follows when the present one is solved, as
    `[training] solved_after` defines"""
    seed_start: Seed = 0
    """first of 100000 seeds, if `seeds` is not set"""
    split: Name | None = None
    """of the task app's dataset: given to it as `env.config.split`"""
    episodes_per_iteration: Positive | None = None
    """rollouts an iteration"""
    evaluation_split: Name | None = None
    """the split of the rollouts of `[evaluation]`; default: `split`"""
    evaluation_episodes: Positive | None = None
    """rollouts an evaluation"""


class RlConfig(Section, frozen=True):
    """An RL job."""

    type: Literal["rl"] | None = None
    """the kind of job, in older files"""
    algorithm: AlgorithmSection | None = None
    services: ServicesSection = ServicesSection()
    compute: ComputeSection | None = None
    topology: TopologySection | None = None
    vllm: VllmSection | None = None
    reference: ReferenceSection | None = None
    distillation: DistillationSection | None = None
    model: ModelSection = ModelSection()
    policy: PolicySection | None = None
    lora: LoraSection | None = None
    job: RlJobSection | None = None
    grader: Free | None = None
    """the grader that gives rollouts their reward if there is no task app, as in docs/graders.md"""
    rollout: RolloutSection = RolloutSection()
    evaluation: EvaluationSection | None = None
    training: TrainingSection = TrainingSection()
    data: RlDataSection = RlDataSection()
    judge: JudgeSection | None = None
    rubric: RubricSection | None = None
    tags: TagsSection = TagsSection()
    smoke: Free | None = None
    """of the client's own trial run"""

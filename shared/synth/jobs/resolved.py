"""Jobs with every default applied: the body of `job.validated`, which trainer and collector read.

Nothing below decides anything: a field that is None is off. The tag `kind` distinguishes the kinds.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from synth.events import LoraShape, ModelRef
from synth.jobs.distillation import DistillationSettings
from synth.jobs.rewards import RewardSettings
from synth.jobs.seeds import Seeds, draw
from synth.models import format_finetuned

#: With refills, groups that an iteration may play, in batches (decision 26).
MAX_DRAWN_BATCHES = 3

Mode = Literal["full", "lora", "qlora"]
Sharding = Literal["replicated", "gradients", "parameters"]

#: A built-in loss (`synth.jobs.resolve.loss.DEFAULTS`), or a plugin (`synth.plugins`).
Loss = str

Overlong = Literal["train", "mask", "penalise"]
LossReduction = Literal["sequence", "token", "prompt"]
Placement = Literal["none", "shared", "dedicated"]

_PREFIX: dict[Mode, Literal["fft", "peft", "qft"]] = {"full": "fft", "lora": "peft", "qlora": "qft"}


class LoraSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter: rank, scale (alpha / r), dropout on its input, and its modules ("all-linear", a regex, or names)."""

    r: int
    alpha: int
    dropout: float
    targets: str | list[str]


class VisionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The images of a vision model: how many a message keeps, and the model whose processor prepares them.

    max_images_per_prompt: how many a prompt of a rollout keeps, the latest ones; None keeps the images of all its
    messages. freeze_vision_tower: whether full training leaves the vision tower unchanged; its projector is always
    trained.
    """

    max_images_per_message: int
    processor_id: str
    freeze_vision_tower: bool = True
    max_images_per_prompt: int | None = None


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """How training is spread over processes, one a GPU.

    world_size: how many; None: all of the trainer's. sharding: the state of which each holds only a part, as in the
    trainer's configuration. dtype: of the forward on GPUs; None leaves it to the trainer.
    """

    world_size: int | None
    sharding: Sharding
    dtype: Literal["fp32", "bf16"] | None


class GpuTopology(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of a node are divided; None if the job does not set it."""

    gpus_for_vllm: int | None
    gpus_for_training: int | None
    gpus_for_ref: int | None


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that SFT and RL jobs share. The fields below `lora` have the names of the trainer's configuration.

    model: the source; base_model: the base below it. lora: None for a full fine-tune. lr: AdamW's, after the warm-up of
    warmup_steps optimizer steps, or if that is None, of the share warmup_ratio of all steps. min_lr_ratio: the end of
    linear and cosine. clip_norm: of the whole gradient. micro_batch_tokens: of one forward and backward pass.
    optimizer: whether AdamW's moments are in 8 bits; optimizer_offload: whether they are in main memory. vision: None
    for a text model.
    """

    model: str
    base_model: str
    mode: Mode
    lora: LoraSettings | None
    lr: float
    schedule: Literal["constant", "linear", "cosine"]
    min_lr_ratio: float
    warmup_ratio: float
    warmup_steps: int | None
    betas: tuple[float, float]
    weight_decay: float
    clip_norm: float
    packing: Literal["packed", "padded"]
    micro_batch_tokens: int
    activation_checkpointing: bool
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    optimizer_offload: bool = False
    parallelism: Parallelism
    checkpoint_every: int | None
    checkpoints_kept: int
    seed: int
    tags: dict[str, Any]
    vision: VisionSettings | None

    @property
    def weights_kind(self) -> Literal["full", "lora"]:
        """The published part of the policy: every weight, or only the adapter."""
        return "full" if self.lora is None else "lora"


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How replies are sampled. max_tokens: a call. top_p 1 and top_k 0 are off; thinking None: the app's choice."""

    temperature: float
    max_tokens: int
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

    task_url: str
    env_name: str | None
    policy_name: str
    max_turns: int
    ops: list[str]
    env_config: dict[str, Any]
    policy_config: dict[str, Any]
    sampling: Sampling
    max_concurrent_rollouts: int
    failure_reward: float
    rollout_timeout_s: float
    max_retries: int
    group_timeout_s: float | None = None
    constrain_tools: bool = False
    trace_rate: float = 0.1
    evaluations_traced: bool = True
    evaluation_env_config: dict[str, Any] = {}

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


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The collapse watch: see `synth.jobs.schema.watch.WatchSection`, whose keys these are. A threshold of 0 is off."""

    action: Literal["warn", "pause", "stop"]
    patience: int
    window: int
    entropy_low: float
    entropy_high: float
    unique_low: float
    length_low: float
    length_high: float
    truncated_rise: float
    no_signal: float
    clip_gap: float
    mismatch_kl: float
    grad_norm_high: float
    reward_drop: float
    stale_share: float
    judge_drift: float


class DpoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Direct Preference Optimization, in the names of the trainer's configuration.

    beta: how strongly the policy is held near its source model. label_smoothing: the share of pairs that are assumed to
    be the wrong way round.
    """

    beta: float
    label_smoothing: float


class SftJob(TrainingJob, frozen=True, kw_only=True, tag_field="kind", tag="sft"):
    """Training on a file: supervised fine-tuning, or DPO on preference pairs if `dpo` is set.

    batch_size: rows, or pairs, an optimizer step. steps, when set, decides, else epochs.

    training_file: a file id (before the upload: a path). examples: only the first rows of it.
    validation_every: optimizer steps. best_metric: the metric that selects the kept model; None keeps the last.
    """

    training_file: str
    examples: int | None
    epochs: int
    steps: int | None
    batch_size: int
    sequence_length: int
    validation_file: str | None
    validation_every: int
    best_metric: Literal["validation_loss"] | None
    dpo: DpoSettings | None = None

    def result_id(self, job_id: str, *, checkpoint: str | None = None) -> str:
        """Return the id of the model that this job makes (decision 18)."""
        prefix = _PREFIX[self.mode]
        return format_finetuned(prefix, self.base_model, job_id, checkpoint=checkpoint)


class CorrectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The correction for the policy that sampled: see `synth.jobs.schema.correction.CorrectionSection`."""

    gates: bool = True
    on_policy: tuple[float, float] = (0.99, 1.01)
    off_policy: tuple[float, float] = (0.5, 2.0)
    gate_tokens: int = 64
    rejected: Literal["leave", "count"] = "count"


class RlJob(TrainingJob, frozen=True, kw_only=True, tag_field="kind", tag="rl"):
    """RL. An iteration trains batch_size groups of group_size rollouts, in `minibatches` optimizer steps.

    label: the job's name, if its sender gives none. async_level: iterations collected ahead. max_staleness: versions a
    trained token may be behind. dynamic_sampling: groups without a signal are refilled. clip_low, clip_high: how far
    the loss lets the policy go, in its own measure. dual_clip: of grpo, None is off. token_truncation: the cap on
    π_old/μ of a token. correction: which sequences are rejected. loss_reduction: the unit that has one weight. kl_beta:
    weight of the KL to the reference; reference: its placement, "none" if the weight is 0. advantage: a plugin, in
    place of the group's own comparison. overlong: how rollouts whose last reply was cut off are trained;
    overlong_penalty: the amount by which their reward is lowered if they are penalised, else 0. verify_every_k:
    versions between two that are published with a canary; 0 is never. watch: None is off. solved_after: iterations in a
    row in which every rollout earns the most, after which the job is done, or continues with the next seeds of
    `curriculum`; 0 is never. rewards: how a rollout is rewarded. graded: None if a task app plays the rollouts.
    distillation: None: no teacher.
    """

    label: str | None
    iterations: int
    batch_size: int
    group_size: int
    minibatches: int
    loss: Loss
    clip_low: float
    clip_high: float
    dual_clip: float | None = None
    token_truncation: float
    correction: CorrectionSettings = CorrectionSettings()
    loss_reduction: LossReduction = "sequence"
    kl_beta: float
    reference: Placement
    advantage_std: bool
    advantage: str | None = None
    overlong: Overlong = "train"
    overlong_penalty: float = 0.0
    async_level: int
    max_staleness: int
    dynamic_sampling: bool
    verify_every_k: int
    topology: GpuTopology
    rollout: RolloutSettings
    train_seeds: Seeds
    curriculum: list[Seeds] = []
    evaluation: EvaluationSettings | None
    watch: WatchSettings | None
    solved_after: int = 0
    rewards: RewardSettings = RewardSettings()
    graded: GradedRows | None = None
    distillation: DistillationSettings | None = None

    def seeds_of(self, iteration: int, *, stage: int = 0) -> list[int]:
        """Return the seeds of training iteration `iteration` (from 1), one a group: a pure function of the job.

        stage: 0 draws from `train_seeds`, k from the k-th set of the curriculum.
        """
        return self._drawn(iteration, stage)[: self.batch_size]

    def refill_seeds_of(self, iteration: int, *, stage: int = 0) -> list[int]:
        """Return the seeds that replace groups without a signal, in order. No other iteration uses them."""
        return self._drawn(iteration, stage)[self.batch_size :]

    @property
    def most_rollouts(self) -> int:
        """How many rollouts an iteration plays at most, refills included."""
        return (MAX_DRAWN_BATCHES if self.dynamic_sampling else 1) * self.batch_size * self.group_size

    def _drawn(self, iteration: int, stage: int) -> list[int]:
        share = MAX_DRAWN_BATCHES if self.dynamic_sampling else 1
        seeds = self.curriculum[stage - 1] if stage else self.train_seeds
        return draw(seeds, job_seed=self.seed, iteration=iteration, batch=share * self.batch_size)

    def result_id(self, job_id: str, *, checkpoint: str | None = None) -> str:
        """Return the id of the model that this job makes (decision 18)."""
        return format_finetuned("rl", self.base_model, job_id, checkpoint=checkpoint)


class EvalJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="eval"):
    """`rollouts_per_seed` rollouts of `model` on each seed. vision: None for a text model. rewards: of each rollout.

    label: as of `RlJob`.
    success_threshold: the least reward that pass@k takes for a success; None: there is no pass@k.
    """

    label: str | None = None
    model: str
    base_model: str
    seeds: list[int]
    rollouts_per_seed: int = 1
    success_threshold: float | None = None
    rollout: RolloutSettings
    tags: dict[str, Any]
    vision: VisionSettings | None = None
    rewards: RewardSettings = RewardSettings()


Job = SftJob | RlJob | EvalJob


class ResolvedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, the origin of each of its values, and the changes and warnings.

    origins: by the job's fields, dotted (`rollout.sampling.top_p`): the place in the file (`rl.toml:14 [lora].r`), the
    flag (`--seed`), "registry" or "default".
    """

    job: Job
    origins: dict[str, str]
    warnings: list[str]


def lora_shape(job: TrainingJob) -> LoraShape | None:
    """Return the shape of the adapter that a job trains; None for a full fine-tune."""
    if job.lora is None:
        return None
    return LoraShape(r=job.lora.r, alpha=job.lora.alpha, targets=job.lora.targets)


def continues(source: ModelRef, lora: LoraShape | None) -> bool:
    """Return whether training with this adapter continues the source's own (decision 31). None: a full fine-tune."""
    return source.kind == "lora" and lora is not None and source.lora == lora


def training_start(job: TrainingJob, source: ModelRef) -> ModelRef:
    """Return the model that a job starts from: the source, for QLoRA with the base below the adapter in 4 bits."""
    if job.mode != "qlora":
        return source
    if continues(source, lora_shape(job)) and source.base is not None:
        return msgspec.structs.replace(source, base=msgspec.structs.replace(source.base, rounded="nf4"))
    return msgspec.structs.replace(source, rounded="nf4")

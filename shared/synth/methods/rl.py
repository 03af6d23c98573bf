"""Reinforcement learning: a job with every default applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from synth.methods.base import UNTRAINED, Mode, NamedFile, Placement, PlayedJob, RolloutCount, TrainingJob
from synth.methods.distillation import DistillationSettings
from synth.methods.eval import count_evaluation
from synth.methods.losses import LOSSES
from synth.methods.rewards import RewardSettings
from synth.methods.rollouts import EvaluationSettings, GradedRows, RolloutSettings
from synth.methods.seeds import Seeds, draw
from synth.models import format_finetuned
from synth.plugins import is_plugin

#: With refills, groups that an iteration may play, in batches (decision 26).
MAX_DRAWN_BATCHES = 3

#: How many seeds a job draws from that names none.
TRAIN_SEEDS = 100_000

#: Of one token of a batch: its id, its log-probability, its version, and whether it is trained
#: (`synth.trajectories.batch.RolloutBatch`); its advantage, if credit is given turn by turn.
_BATCH_TOKEN, _TOKEN_ADVANTAGE = 4 + 4 + 4 + 1, 4

#: A built-in loss (`synth.methods.losses.LOSSES`), or a plugin (`synth.plugins`).
Loss = str

Overlong = Literal["train", "mask", "penalise"]
LossReduction = Literal["sequence", "token", "prompt"]


class GpuTopology(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of a node are divided; None if the job does not set it."""

    gpus_for_vllm: int | None = None
    gpus_for_training: int | None = None
    gpus_for_ref: int | None = None


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


class CorrectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The correction for the policy that sampled: see `synth.jobs.schema.correction.CorrectionSection`."""

    gates: bool = True
    on_policy: tuple[float, float] = (0.99, 1.01)
    off_policy: tuple[float, float] = (0.5, 2.0)
    gate_tokens: int = 64
    rejected: Literal["leave", "count"] = "count"


class RlJob(PlayedJob, TrainingJob, frozen=True, kw_only=True, tag="rl"):
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

    method = "rl"
    tasks = ("collect", "serve")
    rows = "prompts"
    learning_rates: ClassVar[Mapping[Mode, float]] = {"full": 1e-6, "lora": 1e-5, "qlora": 1e-5}
    without_dropout = "with dropout the first ratio is not 1"
    adapter_keys: ClassVar[Mapping[Mode, str]] = {"lora": 'trainer_mode = "lora"', "qlora": 'trainer_mode = "qlora"'}
    checkpoint_steps = 1
    untrained = UNTRAINED | {
        *("advantage", "advantage_std", "async_level", "batch_size", "curriculum", "distillation", "dynamic_sampling"),
        *("graded", "group_size", "overlong", "overlong_penalty", "rewards", "rollout", "solved_after", "train_seeds"),
        *("correction", "evaluation", "iterations", "label", "topology", "watch"),
    }

    label: str | None = None
    iterations: int
    batch_size: int = 8
    group_size: int = 8
    minibatches: int = 4
    loss: Loss = "gspo"
    clip_low: float = LOSSES["gspo"].clip_low
    clip_high: float = LOSSES["gspo"].clip_high
    dual_clip: float | None = None
    token_truncation: float = LOSSES["gspo"].token_truncation
    correction: CorrectionSettings = CorrectionSettings()
    loss_reduction: LossReduction = "sequence"
    kl_beta: float = 0.0
    reference: Placement = "none"
    advantage_std: bool = True
    advantage: str | None = None
    overlong: Overlong = "train"
    overlong_penalty: float = 0.0
    async_level: int = 1
    max_staleness: int = 1
    dynamic_sampling: bool = False
    verify_every_k: int = 1
    topology: GpuTopology = GpuTopology()
    rollout: RolloutSettings = RolloutSettings()
    train_seeds: Seeds = Seeds(count=TRAIN_SEEDS)
    curriculum: list[Seeds] = msgspec.field(default_factory=list[Seeds])
    evaluation: EvaluationSettings | None = None
    watch: WatchSettings | None = None
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

    @property
    def graded_rows(self) -> GradedRows | None:
        return self.graded

    @property
    def clip(self) -> tuple[float, float, float | None]:
        """The two ends of the clip, and the second clip."""
        return self.clip_low, self.clip_high, self.dual_clip

    @property
    def recipe(self) -> dict[str, Any]:
        correction = self.correction
        return super().recipe | {
            "steps": self.iterations,
            "evaluated_every": self.evaluated_every,
            "gates": correction.gates,
            "gate_fresh": correction.on_policy,
            "gate_stale": correction.off_policy,
            "gate_tokens": correction.gate_tokens,
            "rejected": correction.rejected,
        }

    @property
    def files(self) -> list[NamedFile]:
        if self.graded is None:
            return []
        named = {"training_file": self.graded.training_file, "validation_file": self.graded.validation_file}
        return [NamedFile(role, id, f"graded.{role}") for role, id in named.items() if id is not None]

    @property
    def teacher(self) -> DistillationSettings | None:
        return self.distillation

    @property
    def plugins(self) -> dict[str, str]:
        named = {"loss": self.loss, "advantage": self.advantage}
        return {field: name for field, name in named.items() if name is not None and is_plugin(name)}

    @property
    def first_seed(self) -> int:
        return self.seeds_of(1)[0]

    @property
    def evaluated_every(self) -> int:
        return self.evaluation.every_n_iters if self.evaluation is not None else 0

    @property
    def batch_bytes(self) -> int:
        token = _BATCH_TOKEN + (_TOKEN_ADVANTAGE if self.rewards.turn_discount is not None else 0)
        return self.batch_size * self.group_size * self.rollout.sampled_tokens * token

    @property
    def kl_reference(self) -> Placement:
        return self.reference

    @property
    def rollout_counts(self) -> list[RolloutCount]:
        what = f"an iteration, batch_size {self.batch_size:,} x group_size {self.group_size:,} rollouts,"
        counts = [RolloutCount(what, self.batch_size * self.group_size, ("batch_size", "group_size"))]
        if evaluation := self.evaluation:
            counts.append(count_evaluation("an", evaluation.seeds, evaluation.rollouts_per_seed, "evaluation."))
        return counts

    def last_row(self, role: str) -> int:
        if self.graded is None:
            return -1
        evaluated = self.evaluation.seeds if self.evaluation is not None else []
        if role == "validation_file":
            return max(evaluated, default=-1)
        sets = (self.train_seeds, *self.curriculum)
        played = max(max(seeds.listed, default=seeds.start + seeds.count - 1) for seeds in sets)
        return max(played, *(evaluated if self.graded.file_of("eval") == role else []), -1)

    def summary(self) -> str:
        where = f"at {self.rollout.task_url}" if self.graded is None else f"on {self.graded.training_file}, by a grader"
        each = f"{self.batch_size} x {self.group_size} rollouts"
        return f"RL ({self.mode}) of {self.model}, {self.iterations} iterations of {each} {where}"

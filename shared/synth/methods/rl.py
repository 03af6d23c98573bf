"""Reinforcement learning: a job with every default applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field

from synth.methods.base import UNTRAINED, Mode, NamedFile, Placement, PlayedJob, RolloutCount, TrainingJob
from synth.methods.distillation import DistillationSettings
from synth.methods.eval import count_evaluation
from synth.methods.losses import LOSSES, CorrectionSettings
from synth.methods.rewards import RewardSettings
from synth.methods.rollouts import EvaluationSettings, GradedRows, RolloutSettings
from synth.methods.seeds import Seeds, draw
from synth.methods.watch import WatchSettings
from synth.models import format_finetuned
from synth.plugins import is_plugin
from synth.tables.keys import JobSettings, NonNegative, NonNegativeFloat, Positive, keys

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


@keys
class TopologyKeys:
    """Keys of `[topology]`."""

    __slots__ = ()

    gpus_for_vllm: NonNegative | None = None
    """GPUs that serve rollouts: as many as the cluster's operator gave to inference"""
    gpus_for_training: NonNegative | None = None
    """GPUs that train; default: all of the trainer's; the job ends if the trainer has fewer"""
    gpus_for_ref: NonNegative | None = None
    """GPUs that hold the reference model: it lives in the trainer"""


class GpuTopology(TopologyKeys, JobSettings, frozen=True, kw_only=True):
    """How the GPUs of a node are divided; None if the job does not set it."""


@keys
class RlKeys:
    """Keys of `[training]` of RL."""

    __slots__ = ()

    batch_size: Positive = 8
    """groups (seeds) an iteration"""
    group_size: Annotated[int, Field(ge=2)] = 8
    """rollouts of each seed: a rollout is judged against its own group, so two at least"""
    minibatches: Positive = 4
    """optimizer steps a batch; at most the batch_size x group_size rollouts of a batch, which also limit the default;
    with 1 the ratio is always 1 and the clip never acts"""
    loss_reduction: Literal["sequence", "token", "prompt"] = "sequence"
    """the unit that has one weight in the loss, as in docs/losses.md: each rollout, of any length and any number of
    branches (sequence), each sampled token (token), or each prompt with all its rollouts' tokens (prompt)"""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """of grpo: the most times that a token with a negative advantage may count; default: off, 3 is usual"""
    kl_beta: NonNegativeFloat = 0.0
    """weight of the KL from the policy to the reference model; 0 is off, above it `[reference] placement` is needed"""
    advantage_std: bool = True
    """divide a group's advantages by its standard deviation; false is Dr. GRPO"""
    overlong: Overlong = "train"
    """how a rollout is trained whose last reply was cut off for its length: like any other (train); not, although its
    reward counts among its group's (mask); or with a reward that is overlong_penalty lower (penalise)"""
    dynamic_sampling: bool = False
    """replace groups whose rewards are all the same by groups of further seeds, up to 3 x batch_size groups in all;
    off, as it can cost three times the rollouts, and each iteration then sets 3 x batch_size seeds of `[data]` aside"""
    async_level: Annotated[int, Field(ge=0, le=16)] = 1
    """iterations collected ahead of training; 0 is strictly on-policy, 1 hides the shorter of the two"""


class RlJob(PlayedJob, RlKeys, TrainingJob, frozen=True, kw_only=True, tag="rl"):
    """RL. An iteration trains batch_size groups of group_size rollouts, in `minibatches` optimizer steps.

    label: the job's name, if its sender gives none. max_staleness: versions a trained token may be behind. clip_low,
    clip_high: how far the loss lets the policy go, in its own measure. token_truncation: the cap on π_old/μ of a token.
    reference: the placement of the reference model, "none" if kl_beta is 0. advantage: a plugin, in place of the
    group's own comparison. overlong_penalty: 0 unless cut-off rollouts are penalised. verify_every_k: versions between
    two that are published with a canary; 0 is never. watch: None is off. solved_after: iterations in a row in which
    every rollout earns the most, after which the job is done, or continues with the next seeds of `curriculum`; 0 is
    never. graded: None if a task app plays the rollouts. distillation: None: no teacher.
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
    loss: Loss = "gspo"
    clip_low: float = LOSSES["gspo"].clip_low
    clip_high: float = LOSSES["gspo"].clip_high
    token_truncation: float = LOSSES["gspo"].token_truncation
    correction: CorrectionSettings = CorrectionSettings()
    reference: Placement = "none"
    advantage: str | None = None
    overlong_penalty: float = 0.0
    max_staleness: int = 1
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
    def app(self) -> RolloutSettings | None:
        """As `JobMethod`; None for a job of graded rows."""
        return self.rollout if self.graded_rows is None else None

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
    def app_seeds(self) -> Seeds | None:
        return self.train_seeds if self.graded is None else None

    @property
    def evaluated_seeds(self) -> list[int] | None:
        return self.evaluation.seeds if self.graded is None and self.evaluation is not None else None

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

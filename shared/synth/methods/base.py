"""A job as the services see it: a method of training or evaluation says here what it needs, makes and reports.

`JobMethod` has the answers of a method that needs nothing; a method overrides the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from synth.events import LoraShape, ModelRef
from synth.judging.settings import Judging
from synth.methods.distillation import DistillationSettings
from synth.methods.optimization import FileKeys, OptimizationKeys
from synth.methods.rewards import RewardSettings
from synth.methods.rollouts import GradedRows, RolloutSettings
from synth.methods.seeds import Seeds
from synth.models import format_finetuned
from synth.tables.keys import JobSettings, Positive, keys

Mode = Literal["full", "lora", "qlora"]
Sharding = Literal["replicated", "gradients", "parameters"]
Device = Literal["cpu", "cuda"]
Placement = Literal["none", "shared", "dedicated"]

_PREFIX: dict[Mode, Literal["fft", "peft", "qft"]] = {"full": "fft", "lora": "peft", "qlora": "qft"}

#: Forwards of a CPU that share `micro_batch_tokens`: threads may compute as many at one time. It decides which
#: micro-batches there are, so that their number must not depend on the machine.
CPU_FORWARDS = 4

#: Fields of every training job that do not change what a step computes; `recipe` has parts of the last two.
UNTRAINED = frozenset({"model", "base_model", "checkpoints_kept", "tags", "parallelism", "vision"})


class NamedFile(NamedTuple):
    """A dataset of a job. role: "training_file" or "validation_file"; id: a file id, or a path before the upload.

    field: the field of the job that names it.
    """

    role: str
    id: str
    field: str


class RolloutCount(NamedTuple):
    """Rollouts that a collector plans at once. fields: the fields of the job that decide the number."""

    what: str
    rollouts: int
    fields: tuple[str, ...]


class JobMethod(JobSettings, frozen=True, kw_only=True, tag_field="kind"):
    """What the services need to know of a job, whatever its method.

    method: its name. tasks: the kinds of its first tasks, in the order in which they are queued. rows: what a line of
    its files is; None if it has no files.
    """

    method: ClassVar[str]
    tasks: ClassVar[tuple[Literal["collect", "serve", "train"], ...]]
    rows: ClassVar[Literal["conversations", "pairs", "prompts"] | None] = None

    @property
    def kind(self) -> str:
        """The kind of the job on the wire."""
        return str(self.__struct_config__.tag)

    @property
    def files(self) -> list[NamedFile]:
        """The datasets of the job."""
        return []

    @property
    def training(self) -> TrainingJob | None:
        """The job if it trains a model, else None."""
        return None

    @property
    def graded_rows(self) -> GradedRows | None:
        """The rows that a grader plays; None if none does."""
        return None

    @property
    def play(self) -> RolloutSettings | None:
        """How its rollouts are played; None if it has none."""
        return None

    @property
    def app(self) -> RolloutSettings | None:
        """How a task app plays its rollouts; None if none does."""
        return None

    @property
    def judging(self) -> Judging | None:
        """The judges of its rollouts, if any."""
        return None

    @property
    def teacher(self) -> DistillationSettings | None:
        """The teacher of its policy, if any."""
        return None

    @property
    def plugins(self) -> dict[str, str]:
        """The functions of plugins that the job names, by the field that names each."""
        return {}

    @property
    def title(self) -> str | None:
        """The job's name by its file, if its sender gives none."""
        return None

    @property
    def first_seed(self) -> int | None:
        """The seed of its first rollout; None if it has none."""
        return None

    @property
    def app_seeds(self) -> Seeds | None:
        """The seeds that a task app plays in training; None if none does."""
        return None

    @property
    def evaluated_seeds(self) -> list[int] | None:
        """The seeds that a task app plays in the evaluations of training; None if none does."""
        return None

    @property
    def evaluated_every(self) -> int:
        """The number of steps between two evaluations; 0 if no step is evaluated."""
        return 0

    @property
    def lora_shape(self) -> LoraShape | None:
        """The shape of the adapter that the job trains; None if it trains none."""
        return None

    @property
    def rollout_counts(self) -> list[RolloutCount]:
        """The rollouts of an iteration and of an evaluation, if it has any."""
        return []

    def last_row(self, role: str) -> int:
        """Return the largest row number of a file that rollouts play; -1 if none does."""
        return -1

    def start_model(self, source: ModelRef) -> ModelRef:
        """Return the model that the job loads, from its source."""
        return source

    def summary(self) -> str:
        """Return the job in one line."""
        raise NotImplementedError


class PlayedJob:
    """The part of a job whose rollouts are played."""

    __slots__ = ()
    label: str | None
    rollout: RolloutSettings
    rewards: RewardSettings
    vision: VisionSettings | None

    @property
    def play(self) -> RolloutSettings:
        return self.rollout

    @property
    def app(self) -> RolloutSettings | None:
        return self.rollout

    @property
    def judging(self) -> Judging | None:
        return self.rewards.judging

    @property
    def title(self) -> str | None:
        return self.label


@keys
class LoraKeys:
    """Keys of `[lora]`."""

    __slots__ = ()

    r: Positive = 16
    """rank; 16 is enough for RL and for small SFT sets"""
    alpha: Positive = 32
    """scale: the update is multiplied by alpha / r"""


class LoraSettings(LoraKeys, JobSettings, frozen=True, kw_only=True):
    """An adapter. targets: its modules: "all-linear", a regex, or names."""

    dropout: float = 0.0
    targets: str | list[str] = "all-linear"


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

    world_size: how many; None: all of the trainer's. sharding: the state of which each holds only a shard: nothing
    ("replicated"); of master weights, gradients and optimizer state ("gradients"); or of the weights too, between a
    block's forward and its backward ("parameters"). dtype: of the forward on GPUs; None leaves it to the trainer.
    """

    world_size: int | None = None
    sharding: Sharding = "parameters"
    dtype: Literal["fp32", "bf16"] | None = None


class TrainingJob(OptimizationKeys, JobMethod, frozen=True, kw_only=True):
    """The settings that every training job has.

    model: the source; base_model: the base below it. lora: None for a full fine-tune; "lora" trains an adapter, "qlora"
    one over a base in 4 bits. warmup_steps: None leaves the warm-up to warmup_ratio. packing: "packed" (rows end to
    end, attention within each) or "padded" (rows side by side). vision: None for a text model.

    learning_rates: the default of `lr`, by the mode. adapter_keys: the line of a job file that makes the job train an
    adapter, by its mode. checkpoint_steps: steps between two checkpoints of a small model. low_precision_head: whether
    the head is computed in the dtype of the forward; a ratio of two policies needs the precision of float32.
    without_dropout: why an adapter has no dropout; "" if it may have. untrained: fields that do not change what a step
    computes.
    """

    learning_rates: ClassVar[Mapping[Mode, float]]
    adapter_keys: ClassVar[Mapping[Mode, str]]
    checkpoint_steps: ClassVar[int]
    low_precision_head: ClassVar[bool] = False
    without_dropout: ClassVar[str] = ""
    untrained: ClassVar[frozenset[str]]

    model: str
    base_model: str
    mode: Mode = "full"
    lora: LoraSettings | None = None
    lr: float
    warmup_steps: int | None = None
    packing: Literal["packed", "padded"] = "packed"
    activation_checkpointing: bool = False
    parallelism: Parallelism = Parallelism()
    tags: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    vision: VisionSettings | None = None

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings that decide what is trained, as checkpoints store them.

        A job continues from a checkpoint only with equal ones.
        """
        trained = {name: getattr(self, name) for name in self.__struct_fields__ if name not in self.untrained}
        return trained | {
            "lora": self.lora or LoraSettings(),
            "sharding": self.parallelism.sharding,
            "freeze_vision_tower": self.vision is None or self.vision.freeze_vision_tower,
        }

    @property
    def weights_kind(self) -> Literal["full", "lora"]:
        """The published part of the policy: every weight, or only the adapter."""
        return "full" if self.lora is None else "lora"

    @property
    def training(self) -> TrainingJob:
        return self

    @property
    def lora_shape(self) -> LoraShape | None:
        """As `JobMethod`; None for a full fine-tune."""
        return None if self.lora is None else LoraShape(r=self.lora.r, alpha=self.lora.alpha, targets=self.lora.targets)

    def forward_budget(self, device: Device) -> int:
        """Return the tokens of one forward, padding included, unless one row is longer."""
        return self.micro_batch_tokens if device == "cuda" else max(1, self.micro_batch_tokens // CPU_FORWARDS)

    def forward_tokens(self, device: Device) -> int:
        """Return the tokens of the largest forward, padding included."""
        return self.forward_budget(device)

    def longest_sequence(self, device: Device) -> int:
        """Return the tokens of the longest sequence of that forward."""
        return self.forward_tokens(device)

    @property
    def batch_bytes(self) -> int:
        """The bytes of an iteration's batch at most, without its prompts; 0 if rows of a file are trained."""
        return 0

    @property
    def kl_reference(self) -> Placement:
        """The placement of the model that a KL term is measured against."""
        return "none"

    def savings(self, *, on_gpu: bool) -> list[tuple[str, dict[str, Any]]]:
        """Return the settings that save memory without a change of results beyond rounding: the line, and the field."""
        fields: dict[str, Any] = {
            "activation_checkpointing": True,
            "optimizer": "adamw_8bit",
            "optimizer_offload": on_gpu,
        }
        changes = {name: value for name, value in fields.items() if value and getattr(self, name) != value}
        return [(f"{name} = {msgspec.json.encode(value).decode()}", {name: value}) for name, value in changes.items()]

    def start_model(self, source: ModelRef) -> ModelRef:
        if self.mode != "qlora":
            return source
        if continues(source, self.lora_shape) and source.base is not None:
            return msgspec.structs.replace(source, base=msgspec.structs.replace(source.base, rounded="nf4"))
        return msgspec.structs.replace(source, rounded="nf4")

    def result_id(self, job_id: str, *, checkpoint: str | None = None) -> str:
        """Return the id of the model that this job makes (decision 18)."""
        return format_finetuned(_PREFIX[self.mode], self.base_model, job_id, checkpoint=checkpoint)


class FileJob(FileKeys, TrainingJob, frozen=True, kw_only=True):
    """Training on the rows of a file.

    batch_size: rows, or pairs, an optimizer step. steps, when set, decides, else epochs.

    training_file: a file id (before the upload: a path). examples: only the first rows of it.
    validation_every: optimizer steps. best_metric: the metric that selects the kept model; None keeps the last.
    row_sequences: sequences that a row is.
    """

    tasks = ("train",)
    adapter_keys: ClassVar[Mapping[Mode, str]] = {
        "lora": '[training] mode = "lora"',
        "qlora": "[training] use_qlora = true",
    }
    checkpoint_steps = 100
    row_sequences: ClassVar[int] = 1
    untrained = UNTRAINED | {"training_file", "validation_file"}

    training_file: str
    examples: int | None = None
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    validation_file: str | None = None
    validation_every: int = 100
    best_metric: Literal["validation_loss"] | None = None

    @property
    def recipe(self) -> dict[str, Any]:
        return super().recipe | {
            "max_images_per_message": 1 if self.vision is None else self.vision.max_images_per_message
        }

    @property
    def files(self) -> list[NamedFile]:
        named = {"training_file": self.training_file, "validation_file": self.validation_file}
        return [NamedFile(role, id, role) for role, id in named.items() if id is not None]

    @property
    def evaluated_every(self) -> int:
        return self.validation_every if self.validation_file is not None else 0

    def forward_tokens(self, device: Device) -> int:
        row = self.sequence_length * self.row_sequences
        return min(max(self.forward_budget(device), row), self.batch_size * row)

    def longest_sequence(self, device: Device) -> int:
        return min(self.forward_tokens(device), self.sequence_length)

    def summary(self) -> str:
        length = f"{self.steps} steps" if self.steps else f"{self.epochs} epoch{'s' * (self.epochs > 1)}"
        what = f"{self.method.upper()} ({self.mode}) of {self.model} on {self.training_file}"
        rows = "rows" if self.rows == "conversations" else self.rows
        return f"{what}, {length} of {self.batch_size} {rows} a step"


def continues(source: ModelRef, lora: LoraShape | None) -> bool:
    """Return whether training with this adapter continues the source's own (decision 31). None: a full fine-tune."""
    return source.kind == "lora" and lora is not None and source.lora == lora

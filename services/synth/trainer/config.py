"""The configuration of a training process: every number resolved, nothing left to guess.

The service builds one from a resolved job (`owner/learner_config.py`). docs/decisions.md explains the defaults.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from synth.trainer.errors import TrainingFailed

ConfigT = TypeVar("ConfigT", bound="TrainConfig")

_POSITIVE = ("lr", "clip_norm", "threads", "micro_batch_tokens", "checkpoint_every", "checkpoint_bytes", "world_size")


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter. targets: "all-linear" (every linear layer but the LM head; of a vision tower the projector's), a
    regex, or module names, "mm_projector" for the projector's."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: str | list[str] = "all-linear"


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that SFT and RL share.

    mode: "lora" trains an adapter, "qlora" one over a base in 4 bits.
    adapter_base: the id of the adapter's base model, which its files name; None: they name none.
    warmup_steps, when given, wins over warmup_ratio (a share of all steps); steps as `train.step` counts them.
    min_lr_ratio: the end of a cosine or linear schedule, as a share of lr.
    clip_norm: the largest L2 norm of the whole gradient.
    dtype: of the forward and of the served weights; master weights, log-probabilities and loss are float32.
    packing: "packed" (rows end to end, attention within each) or "padded" (rows side by side).
    micro_batch_tokens: tokens in one forward, padding included; a longer row is a forward of its own.
    optimizer: "adamw" has moments in float32, "adamw_8bit" in 8 bits by blocks. optimizer_offload: whether they are in
    the CPU's memory and are copied to the device for the update, some at a time.
    checkpoint_every: steps between resume checkpoints; the last step always makes one. None: one step of RL, or 100 of
    SFT, for each begun `checkpoint_bytes` of a checkpoint's size.
    world_size: processes (ranks) that train together, a GPU each. sharding: the state of which a rank holds only a
    shard:
    nothing ("replicated"); of master weights, gradients and optimizer state ("gradients"); or of the weights too,
    between a block's forward and its backward ("parameters").
    freeze_vision_tower: whether mode "full" trains only the projector of a vision tower. LoRA adapts what its targets
    name.
    """

    mode: Literal["full", "lora", "qlora"] = "full"
    lora: AdapterConfig = AdapterConfig()
    adapter_base: str | None = None
    lr: float
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    min_lr_ratio: float = 0.0
    warmup_ratio: float = 0.05
    warmup_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    seed: int = 0
    dtype: Literal["fp32", "bf16"] = "fp32"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    deterministic: bool = True
    packing: Literal["packed", "padded"] = "packed"
    micro_batch_tokens: int = 8192
    activation_checkpointing: bool = False
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    optimizer_offload: bool = False
    checkpoint_every: int | None = None
    checkpoint_bytes: int = 8 << 30
    world_size: int = 1
    sharding: Literal["replicated", "gradients", "parameters"] = "parameters"
    freeze_vision_tower: bool = True

    @property
    def sharded(self) -> bool:
        """Whether a rank holds only a shard of the model."""
        return self.world_size > 1 and self.sharding != "replicated"


class DpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Direct Preference Optimization: see `losses.dpo.dpo_loss`."""

    beta: float = 0.1
    label_smoothing: float = 0.0


class SftTrainConfig(TrainConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training on the rows of a file: supervised fine-tuning, or with `dpo` on preference pairs.

    steps, when given, wins over epochs. examples: only the first rows of the dataset.
    batch_size: sequences, or pairs, in one optimizer step, accumulation included.
    sequence_length: tokens of a row that are kept. max_images_per_message: images of a message that a vision model is
    shown, the first ones. validation_every: steps; 0 is never.
    best_metric: the metric by which the exported model is picked; None exports the last.
    """

    batch_size: int
    sequence_length: int
    max_images_per_message: int = 1
    examples: int | None = None
    epochs: int = 1
    steps: int | None = None
    validation_every: int = 0
    best_metric: Literal["validation_loss"] | None = None
    dpo: DpoConfig | None = None


class RlTrainConfig(TrainConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reinforcement learning.

    steps: iterations of the job, one rollout batch each. minibatches: optimizer steps in one iteration.
    loss: the policy-gradient loss, one of ours or a plugin (`losses.plugin`). clip_low, clip_high: how far an update
    may move the quantity that the loss bounds: the ratio of a sequence (gspo, gspo_token) or token (grpo), its weight
    (cispo) or its probability (dppo).
    dual_clip: of grpo, the cap on the ratio of a token with a negative advantage; None: no cap.
    loss_reduction: the unit of equal weight: rollouts, tokens or prompts (`losses.reduction.token_weights`).
    kl_beta: the weight of the KL to the reference. reference: the placement of the reference model (`load_reference`).
    reference_device: the torch device of a dedicated reference; None is the policy's.
    token_truncation: the cap on π_old/μ of one token (μ: the policy that sampled it).
    gates: whether sequences are rejected by their drift. gate_on_policy, gate_off_policy: the range that the geometric
    mean of π_old/μ may take over a sequence's tokens of lag 0, and of lag ≥ 1; outside it the sequence is
    rejected (decision 28). Checkpoints store them as `gate_fresh` and `gate_stale`. gate_tokens: a mean over fewer has
    a wider gate. rejected: whether the weight of rejected sequences goes to the other sequences ("leave") or is lost
    ("count").
    max_staleness: versions that a token may be behind; a sequence with an older one is not trained.
    verify_every_k: versions between two that are published with a canary; 0 is never. evaluated_every: steps between
    two evaluations of the job; 0 is none.
    """

    steps: int
    minibatches: int = 4
    loss: str = "gspo"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    dual_clip: float | None = None
    loss_reduction: Literal["sequence", "token", "prompt"] = "sequence"
    kl_beta: float = 0.0
    reference: Literal["none", "shared", "dedicated"] = "none"
    reference_device: str | None = None
    token_truncation: float = 2.0
    gate_on_policy: tuple[float, float] = msgspec.field(default=(0.99, 1.01), name="gate_fresh")
    gate_off_policy: tuple[float, float] = msgspec.field(default=(0.5, 2.0), name="gate_stale")
    gates: bool = True
    gate_tokens: int = 64
    rejected: Literal["leave", "count"] = "count"
    max_staleness: int = 8
    verify_every_k: int = 1
    evaluated_every: int = 0


def parse_train_config(data: dict[str, Any], kind: type[ConfigT]) -> ConfigT:
    """Decode the config of a `start` message. Raises `TrainingFailed` (bad_recipe) with the field that is wrong."""
    try:
        config = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise TrainingFailed("bad_recipe", f"config: {error}") from error
    for name in _POSITIVE:
        if getattr(config, name) is not None and not getattr(config, name) > 0:
            raise TrainingFailed("bad_recipe", f"config.{name} is {getattr(config, name)}; expected above 0")
    return config


def config_as_json(config: TrainConfig) -> dict[str, Any]:
    """Return the config as JSON gives it back (lists for tuples), so that two can be compared."""
    return msgspec.json.decode(msgspec.json.encode(config))

"""The settings of the optimization that every training job has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from synth.tables.keys import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Seed, keys

Scheduler = Literal["constant", "linear", "cosine"]
Betas = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(min_length=2, max_length=2), Strict(False)]


@keys
class OptimizationKeys:
    """Keys of `[training]` and of `[hyperparameters]`."""

    __slots__ = ()

    schedule: Annotated[Scheduler, Field(alias="lr_scheduler")] = "constant"
    """after the warm-up; constant in RL, as the policy's data change under it anyhow"""
    min_lr_ratio: Fraction = 0.0
    """the end of linear and cosine, as a share of learning_rate"""
    warmup_ratio: Fraction = 0.05
    """share of all optimizer steps over which the rate rises from 0"""
    betas: Betas = (0.9, 0.95)
    """AdamW's"""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's; 0 in RL, which moves weights too little to need it"""
    clip_norm: Annotated[PositiveFloat, Field(alias="grad_clip")] = 1.0
    """largest norm of the gradient"""
    micro_batch_tokens: Positive = 8192
    """tokens in one forward and backward pass, or on a CPU in four: memory, not mathematics"""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw has two moments of a trained weight in float32, 8 bytes; adamw_8bit in 8 bits by blocks, about 2:
    docs/gpu.md"""
    optimizer_offload: bool = False
    """keep the moments in main memory, and bring them to the GPU for each update, some at a time"""
    checkpoint_every: Positive | None = None
    """steps (iterations in RL) between two resume points; default: 100 (1 in RL), more for a large model"""
    checkpoints_kept: Annotated[Positive, Field(alias="keep_checkpoints")] = 3
    """how many checkpoints stay to be served and evaluated: the last ones whose step was evaluated; without an
    evaluation, the last of all"""
    seed: Seed = 0
    """of everything random: order of rows or seeds, initial adapter, dropout"""


@keys
class FileKeys(OptimizationKeys):
    """Keys of `[hyperparameters]`, for training on the rows of a file."""

    __slots__ = ()

    schedule: Annotated[Scheduler, Field(alias="lr_scheduler")] = "cosine"
    """after the warm-up"""
    min_lr_ratio: Fraction = 0.1
    """the end of linear and cosine, as a share of learning_rate"""
    warmup_ratio: Fraction = 0.03
    """share of all steps over which the rate rises from 0"""
    warmup_steps: NonNegative | None = None
    """the warm-up in steps; if it is set, warmup_ratio has no effect"""
    sequence_length: Positive = 2048
    """tokens a row, for DPO each side of a pair; longer ones are cut and counted"""

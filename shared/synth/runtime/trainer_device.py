"""What trains jobs here, for whoever trains them and for whoever refuses a job that does not fit."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class TrainerDeviceSettings(BaseSettings):
    """Settings of the trainer and of the validator, the same for both."""

    model_config = SettingsConfigDict(env_prefix="SYNTH_", extra="ignore")

    device: Literal["cpu", "cuda"] = "cpu"
    """Where the training process computes."""

    dtype: Literal["fp32", "bf16"] = "fp32"
    """Of the forward pass; master weights, log-probabilities and losses are float32 in any case."""

    ranks: int | None = Field(default=None, ge=1)
    """Processes that train a job together, the model spread over them, a GPU each. Unset: all GPUs, on CPU 1; for the
    validator, which sees no GPU, 1."""

    trainer_memory_bytes: int | None = Field(default=None, ge=1)
    """Bytes of memory of each device of the pool's trainers. A job whose training cannot fit is refused by the
    validator, with the numbers and what would make it fit. `synthctl up` sets it on GPUs. Unset: the validator refuses
    none, and the trainer asks the GPU before it loads a model."""

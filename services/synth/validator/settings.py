"""Settings of the validator."""

from __future__ import annotations

from pydantic import Field

from synth.graders.python.settings import PythonGraderSettings
from synth.jobs.limits import JobLimitSettings
from synth.jobs.memory import Device, Dtype
from synth.jobs.plan import TrainerDevice
from synth.plugins import PluginSettings
from synth.runtime.settings import ServiceSettings


class ValidatorSettings(ServiceSettings, PythonGraderSettings, PluginSettings, JobLimitSettings):
    """What validating needs beside the shared settings."""

    asks_at_once: int = 4
    """Job files that one process looks at at the same time for clients that wait for it."""

    trainer_memory_bytes: int | None = Field(default=None, ge=1)
    """Bytes of memory of each device of the pool's trainers: a job whose training cannot fit there is rejected, with
    the numbers and what would make it fit. `synthctl up` sets it, and the next three, where there are GPUs. Unset: none
    is rejected for that, and the trainer looks before it loads a model."""

    trainer_device: Device = "cuda"
    """What those devices are: what SYNTH_DEVICE is for the trainers."""

    trainer_dtype: Dtype = "bf16"
    """Of the forward pass where a job does not say, or on a CPU: what SYNTH_DTYPE is for the trainers."""

    trainer_ranks: int = Field(default=1, ge=1)
    """Devices that train a job together: what SYNTH_RANKS is for the trainers, or the GPUs that each sees."""

    @property
    def trainer(self) -> TrainerDevice:
        """What trains the jobs that it validates."""
        return TrainerDevice(
            device=self.trainer_device,
            dtype=self.trainer_dtype,
            ranks=self.trainer_ranks,
            memory=self.trainer_memory_bytes,
        )

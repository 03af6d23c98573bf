"""Settings of the validator."""

from __future__ import annotations

from pydantic import Field

from synth.graders.python.settings import PythonGraderSettings
from synth.jobs.limits import JobLimitSettings
from synth.jobs.memory import Dtype
from synth.jobs.plan import TrainerDevice
from synth.methods.base import Device
from synth.plugins import PluginSettings
from synth.runtime.settings import ServiceSettings


class ValidatorSettings(ServiceSettings, PythonGraderSettings, PluginSettings, JobLimitSettings):
    """The validator's settings, beside the shared ones."""

    asks_at_once: int = 4
    """Job files that one process checks at the same time for waiting clients."""

    trainer_memory_bytes: int | None = Field(default=None, ge=1)
    """Bytes of memory of each device of the pool's trainers: a job whose training cannot fit there is rejected, with
    the numbers and a fix. `synthctl up` sets it, and the next three, if there are GPUs. Unset: no job is rejected for
    that, and the trainer checks before it loads a model."""

    trainer_device: Device = "cuda"
    """The kind of those devices; the same as SYNTH_DEVICE of the trainers."""

    trainer_dtype: Dtype = "bf16"
    """The dtype of the forward pass if a job does not set it, or on a CPU; the same as SYNTH_DTYPE of the trainers."""

    trainer_ranks: int = Field(default=1, ge=1)
    """Devices that train a job together; the same as SYNTH_RANKS of the trainers, or the GPUs that each sees."""

    @property
    def trainer(self) -> TrainerDevice:
        """The device that trains the jobs that it validates."""
        return TrainerDevice(
            device=self.trainer_device,
            dtype=self.trainer_dtype,
            ranks=self.trainer_ranks,
            memory=self.trainer_memory_bytes,
        )

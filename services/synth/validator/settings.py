"""Settings of the validator."""

from __future__ import annotations

from synth.graders.python.settings import PythonGraderSettings
from synth.jobs.plan import TrainerDevice
from synth.runtime.settings import ServiceSettings
from synth.runtime.trainer_device import TrainerDeviceSettings


class ValidatorSettings(ServiceSettings, PythonGraderSettings, TrainerDeviceSettings):
    """What validating needs beside the shared settings."""

    asks_at_once: int = 4
    """Job files that one process looks at at the same time for clients that wait for it."""

    @property
    def trainer(self) -> TrainerDevice:
        """What trains the jobs that it validates."""
        return TrainerDevice(
            device=self.device, dtype=self.dtype, ranks=self.ranks or 1, memory=self.trainer_memory_bytes
        )

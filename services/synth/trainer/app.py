"""The trainer service: owns training jobs, one at a time."""

from __future__ import annotations

from synth.bus.worker import TaskWorker
from synth.service import Service, run
from synth.trainer.job import TrainerService
from synth.trainer.settings import TrainerSettings
from synth.trainer.training import train


def main() -> int:
    """`synthd trainer`."""
    settings = TrainerSettings()

    async def setup(service: Service) -> None:
        trainer = TrainerService(service.bus, service.blobs, settings, train)
        worker = TaskWorker(service.bus, kind="train", pool=settings.pool, capacity=1, run=trainer.run)
        service.checks["worker"] = worker.ill
        service.run("train", worker.serve(service.stop))

    return run("trainer", settings, setup)

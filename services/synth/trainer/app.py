"""The trainer service: owns training jobs, one at a time."""

from __future__ import annotations

import asyncio
import functools

from synth.bus.worker import TaskWorker
from synth.service import Service, run
from synth.trainer.owner import attempt_run
from synth.trainer.owner.learner_process import TrainingProcesses
from synth.trainer.owner.owner import TrainerService
from synth.trainer.settings import TrainerSettings


def main() -> int:
    """`synthd trainer`."""
    settings = TrainerSettings()

    async def setup(service: Service) -> None:
        processes = TrainingProcesses(threads=settings.threads)
        train = functools.partial(attempt_run.train, processes=processes)
        trainer = TrainerService(service.bus, service.blobs, settings, train)
        worker = TaskWorker(
            service.bus, kind="train", pool=settings.pool, capacity=1, run=trainer.run, give_up=trainer.give_up
        )
        service.checks["worker"] = worker.health_problem
        service.add_background(asyncio.create_task(_keep_one_waiting(service, processes)))
        service.run("train", worker.serve(service.stop))

    return run("trainer", settings, setup)


async def _keep_one_waiting(service: Service, processes: TrainingProcesses) -> None:
    await service.after_startup()
    await processes.keep_one_waiting()

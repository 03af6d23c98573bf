"""The trainer service: owns training jobs, one at a time."""

from __future__ import annotations

import asyncio
import functools

from synth.bus.tasks.attempt_logs import AttemptLogs
from synth.bus.tasks.solitude import SuspicionSettings
from synth.bus.tasks.worker import TaskWorker
from synth.service import Service, run
from synth.trainer.owner import training_run
from synth.trainer.owner.owner import TrainTaskOwner
from synth.trainer.owner.processes.learner_process import LearnerPool
from synth.trainer.settings import TrainerSettings


def main() -> int:
    """Run `synthd trainer`; returns its exit code."""
    settings = TrainerSettings()

    async def setup(service: Service) -> None:
        learners = LearnerPool()
        train = functools.partial(training_run.train, learners=learners)
        trainer = TrainTaskOwner(service.bus, service.blobs, settings, train)
        worker = TaskWorker(
            service.bus,
            kind="train",
            pool=settings.pool,
            capacity=1,
            failures=settings.task_failures,
            suspicion=SuspicionSettings(after=settings.task_suspicions, alone_s=settings.task_alone_s),
            attempt_logs=AttemptLogs(service.bus, service.blobs, settings.job_log_bytes, settings.job_log_every_s),
            run=trainer.run,
            give_up=trainer.give_up,
        )
        service.checks["worker"] = worker.health_problem
        service.add_background(asyncio.create_task(_keep_warm(service, learners)))
        service.run("train", worker.serve(service.stop))

    return run("trainer", settings, setup)


async def _keep_warm(service: Service, learners: LearnerPool) -> None:
    await service.after_startup()
    await learners.keep_warm()

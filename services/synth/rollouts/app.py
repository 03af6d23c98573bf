"""The rollouts service: collects rollouts from task apps, job by job."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from synth.bus.kv.replicas import ReplicaTable
from synth.bus.tasks.attempt_logs import AttemptLogs
from synth.bus.tasks.solitude import SuspicionSettings
from synth.bus.tasks.worker import TaskWorker
from synth.graders.python.pool import open_pool
from synth.outbound.answer_memory import AnswerMemory
from synth.rollouts.jobs.owner import CollectTaskOwner
from synth.rollouts.metrics import ConcurrencyMetrics
from synth.rollouts.settings import RolloutsSettings
from synth.service import Service, run


def main() -> int:
    """Run `synthd rollouts`."""
    settings = RolloutsSettings()

    async def setup(service: Service) -> None:
        replicas, python = ReplicaTable(service.bus), await open_pool(settings)
        answers = AnswerMemory(settings.answer_memory_bytes, wait_s=settings.answer_memory_wait_s)
        collect_owner = CollectTaskOwner(
            service.bus, service.blobs, settings, service.secrets, replicas, service.off_loop, answers, python
        )
        REGISTRY.register(ConcurrencyMetrics(collect_owner.collectors))
        worker = TaskWorker(
            service.bus,
            kind="collect",
            pool=settings.pool,
            capacity=settings.jobs,
            spare=settings.jobs,
            failures=settings.task_failures,
            suspicion=SuspicionSettings(after=settings.task_suspicions, alone_s=settings.task_alone_s),
            attempt_logs=AttemptLogs(service.bus, service.blobs, settings.job_log_bytes, settings.job_log_every_s),
            run=collect_owner.run,
            give_up=collect_owner.give_up,
        )
        service.checks["worker"] = worker.health_problem
        following = asyncio.create_task(replicas.follow())
        service.add_background(following)
        service.run("collect", worker.serve(service.stop))

    return run("rollouts", settings, setup)

"""The rollouts service: collects rollouts from task apps, job by job."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from synth.bus.kv.replicas import ReplicaTable
from synth.bus.worker import TaskWorker
from synth.rollouts.jobs.owner import CollectorService
from synth.rollouts.metrics import ConcurrencyMetrics
from synth.rollouts.settings import RolloutsSettings
from synth.service import Service, run


def main() -> int:
    """`synthd rollouts`."""
    settings = RolloutsSettings()

    async def setup(service: Service) -> None:
        replicas = ReplicaTable(service.bus)
        collector = CollectorService(service.bus, service.blobs, settings, replicas)
        REGISTRY.register(ConcurrencyMetrics(collector.collectors))
        worker = TaskWorker(
            service.bus,
            kind="collect",
            pool=settings.pool,
            capacity=settings.jobs,
            run=collector.run,
            give_up=collector.give_up,
        )
        service.checks["worker"] = worker.ill
        following = asyncio.create_task(replicas.follow())
        service.stop_with(following)
        service.run("collect", worker.serve(service.stop))

    return run("rollouts", settings, setup)

"""Owners of tasks whose work a test decides, and the workers that run them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import enqueue
from synth.bus.tasks.attempt_logs import AttemptLogs
from synth.bus.tasks.lease import Lease
from synth.bus.tasks.solitude import SuspicionSettings
from synth.bus.tasks.worker import TaskWorker
from synth.work import Task
from tests.service.bus.own_server import OwnServer, is_queued

Run = Callable[[Task, Lease], Awaitable[None]]
GiveUp = Callable[[Task, str], Awaitable[None]]


def a_task(n: int = 1) -> Task:
    return Task(kind="train", pool="default", org="org_a", job_id=f"job_{n}")


class Owner:
    """Runs tasks as the test says; notes who was begun."""

    def __init__(self, act: Run) -> None:
        self.begun: list[str] = []
        self.times: list[float] = []
        self.news = asyncio.Condition()
        self._act = act

    async def __call__(self, task: Task, lease: Lease) -> None:
        async with self.news:
            self.begun.append(task.job_id)
            self.times.append(time.monotonic())
            self.news.notify_all()
        await self._act(task, lease)

    async def has_begun(self, count: int, *, timeout: float = 10) -> None:
        async with asyncio.timeout(timeout), self.news:
            await self.news.wait_for(lambda: len(self.begun) >= count)


def no_logs(bus: Connection) -> AttemptLogs:
    """Logs that are not stored."""
    return AttemptLogs(bus, BlobStore.open("memory:///"), max_bytes=0, every_s=60)


def a_worker(
    bus: Connection,
    run: Run,
    *,
    capacity: int = 1,
    failures: int = 2,
    alone_s: float = 60,
    give_up: GiveUp | None = None,
    attempt_logs: AttemptLogs | None = None,
) -> TaskWorker:
    suspicion = SuspicionSettings(after=2, alone_s=alone_s)
    return TaskWorker(
        bus,
        kind="train",
        pool="default",
        capacity=capacity,
        failures=failures,
        suspicion=suspicion,
        attempt_logs=attempt_logs or no_logs(bus),
        run=run,
        give_up=give_up,
    )


@asynccontextmanager
async def working(
    own: OwnServer, owner: Owner, *, capacity: int = 1, alone_s: float = 60, give_up: GiveUp | None = None
):
    """A worker in this process; the event that stops it."""
    bus = await own.connect("trainer")
    worker = a_worker(bus, owner, capacity=capacity, alone_s=alone_s, give_up=give_up)
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop))
    try:
        yield worker, stop
    finally:
        stop.set()
        await asyncio.wait_for(serving, 15)


async def queue(own: OwnServer, *numbers: int) -> None:
    inference = await own.connect("inference")
    for n in numbers:
        assert await enqueue(inference, a_task(n))


async def gone(own: OwnServer, task: Task) -> None:
    async with asyncio.timeout(10):
        while await is_queued(own.opened[0], task.subject):
            continue


async def hold(task: Task, lease: Lease) -> None:
    lease.progress("held", deadline=60)
    await asyncio.Event().wait()


async def finish(task: Task, lease: Lease) -> None:
    return None

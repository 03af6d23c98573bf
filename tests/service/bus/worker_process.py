"""A worker that takes tasks and says so on stdout: `python -m … URL USER PASSWORD hold|die|N`.

It never ends its one task, or dies of it. With a number it takes up to so many, of which job_0 kills it: once it has
so many, or has job_0 alone; each of the others ends well only where it runs alone. That worker begins again when it
dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pydantic import SecretStr

from synth.blobs import BlobStore
from synth.bus.connection import connect
from synth.bus.tasks.attempt_logs import AttemptLogs
from synth.bus.tasks.lease import Lease
from synth.bus.tasks.solitude import SuspicionSettings
from synth.bus.tasks.worker import TaskWorker
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings
from synth.work import Task

#: In a row, of one task, where several run.
FAILURES = 2


async def hold(task: Task, lease: Lease) -> None:
    sys.stdout.write(f"took {task.job_id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def die(task: Task, lease: Lease) -> None:
    sys.stdout.write(f"took {task.job_id}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


class Mixed:
    """Does a poisonous task and its neighbours."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.begun = 0
        self.full = asyncio.Event()
        self.worker: TaskWorker | None = None

    async def __call__(self, task: Task, lease: Lease) -> None:
        assert self.worker is not None
        alone = self.worker.runs_alone
        self.begun += 1
        if self.begun == self.capacity:
            self.full.set()
        if not alone:
            await self.full.wait()
        if task.job_id == "job_0":
            os.kill(os.getpid(), signal.SIGKILL)
        if not alone:
            await asyncio.Event().wait()


async def main(url: str, user: str, password: str, act: str) -> None:
    logs.configure(user)
    settings = ServiceSettings(nats_url=url, nats_user=user, nats_password=SecretStr(password), replica="doomed")
    bus = await connect(settings, user)
    mixed = Mixed(int(act)) if act.isdecimal() else None
    worker = TaskWorker(
        bus,
        kind="train",
        pool="default",
        capacity=mixed.capacity if mixed else 1,
        failures=FAILURES if mixed else 6,
        suspicion=SuspicionSettings(after=2, alone_s=60),
        attempt_logs=AttemptLogs(bus, BlobStore.open("memory:///"), max_bytes=0, every_s=60),
        run=mixed or {"hold": hold, "die": die}[act],
    )
    if mixed:
        mixed.worker = worker
    await worker.serve(asyncio.Event())


def begin_again_when_it_dies(*args: str) -> None:
    """Forks, so that what is imported is imported once."""
    while (child := os.fork()) != 0:
        os.waitpid(child, 0)
        sys.stdout.write("died\n")
        sys.stdout.flush()
    asyncio.run(main(*args))


if __name__ == "__main__":
    if sys.argv[-1].isdecimal():
        begin_again_when_it_dies(*sys.argv[1:])
    else:
        asyncio.run(main(*sys.argv[1:]))

"""A worker that takes a task, says so on stdout, and never ends it: `python -m … URL USER PASSWORD`."""

from __future__ import annotations

import asyncio
import sys

from pydantic import SecretStr

from synth.bus.connection import connect
from synth.bus.worker import Lease, TaskWorker
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings
from synth.work import Task


async def hold(task: Task, lease: Lease) -> None:
    sys.stdout.write(f"took {task.job_id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def main(url: str, user: str, password: str) -> None:
    logs.configure(user)
    settings = ServiceSettings(nats_url=url, nats_user=user, nats_password=SecretStr(password), replica="doomed")
    bus = await connect(settings, user)
    worker = TaskWorker(bus, kind="train", pool="default", capacity=1, run=hold)
    await worker.serve(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

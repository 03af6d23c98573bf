"""Tasks of a job that was resumed: queued beside those of the term before, and begun after them."""

from __future__ import annotations

import asyncio

from synth.bus.publish import enqueue
from synth.bus.tasks.lease import Lease
from synth.work import Task
from tests.service.bus.owners import Owner, a_task, gone, queue, working


async def test_a_resumed_jobs_task_waits_for_the_one_of_the_term_before(own):
    await own.provision()
    first, second = a_task(1), Task(kind="train", pool="default", org="org_a", job_id="job_1", term=1)
    let_go, seen = asyncio.Event(), []

    async def act(task: Task, lease: Lease) -> None:
        seen.append(f"begun {task.term}")
        if task.term == 0:
            await let_go.wait()
        seen.append(f"ended {task.term}")

    owner = Owner(act)
    async with working(own, owner, capacity=3) as (worker, _):
        inference = await own.connect("inference")
        assert await enqueue(inference, first)
        await owner.has_begun(1)
        assert await enqueue(inference, second)
        await queue(own, 2)
        # Another job's task came after it and has begun: it was taken, and waits.
        await owner.has_begun(2)
        assert worker.running >= 2
        let_go.set()
        await owner.has_begun(3)
        await gone(own, second)
    assert seen.index("ended 0") < seen.index("begun 1")

"""Tasks of several organisations in one pool: the next one is of whoever has least of it, whatever others queued."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from synth.bus.publish import enqueue
from synth.bus.tasks.lease import Lease
from synth.bus.tasks.solitude import SuspicionSettings
from synth.bus.tasks.worker import TaskWorker
from synth.work import Task
from tests.service.bus.own_server import OwnServer
from tests.service.bus.owners import no_logs


def a_task(name: str) -> Task:
    org = name.split("-")[0]
    return Task(kind="train", pool="default", org=f"org_{org}", job_id=f"job_{name}")


class Pool:
    """Workers whose tasks go on until the test ends them; notes who was begun, in order."""

    def __init__(self, own: OwnServer) -> None:
        self.begun: list[str] = []
        self.running: dict[str, asyncio.Event] = {}
        self._own = own
        self._news = asyncio.Condition()

    async def __call__(self, task: Task, lease: Lease) -> None:
        lease.progress("held", deadline=600)
        name, end = task.job_id.removeprefix("job_"), asyncio.Event()
        async with self._news:
            self.begun.append(name)
            self.running[name] = end
            self._news.notify_all()
        await end.wait()

    def end(self, *names: str) -> None:
        for name in names:
            self.running[name].set()

    async def has_begun(self, count: int) -> list[str]:
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(lambda: len(self.begun) >= count)
        return self.begun

    @asynccontextmanager
    async def worker(self, *, capacity: int, spare: int = 0):
        bus = await self._own.connect("trainer")
        worker = TaskWorker(
            bus,
            kind="train",
            pool="default",
            capacity=capacity,
            spare=spare,
            failures=2,
            suspicion=SuspicionSettings(after=2, alone_s=60),
            attempt_logs=no_logs(bus),
            run=self,
        )
        stop = asyncio.Event()
        serving = asyncio.create_task(worker.serve(stop))
        try:
            yield worker
        finally:
            stop.set()
            await asyncio.wait_for(serving, 30)


async def queue(own: OwnServer, *names: str) -> None:
    inference = await own.connect("inference")
    for name in names:
        assert await enqueue(inference, a_task(name))


def loud(count: int) -> list[str]:
    return [f"loud-{n}" for n in range(count)]


async def test_the_next_task_is_of_whoever_has_least_of_the_pool(own):
    """One worker with one place, as a trainer is, and another one: what each has counts for both."""
    await own.provision(ack_wait=30)
    await queue(own, *loud(20), "quiet-0", "quiet-1")
    pool = Pool(own)
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(pool.worker(capacity=1))
        assert await pool.has_begun(1) == ["loud-0"]
        await workers.enter_async_context(pool.worker(capacity=1))
        assert await pool.has_begun(2) == ["loud-0", "quiet-0"]
        pool.end("loud-0")
        assert (await pool.has_begun(3))[2] == "loud-1"
        pool.end("quiet-0")
        assert (await pool.has_begun(4))[3] == "quiet-1"
        pool.end("quiet-1")
        # Alone again, it has the whole pool, in the order in which it queued.
        assert (await pool.has_begun(5))[4] == "loud-2"
        pool.end("loud-1", "loud-2")
        assert sorted((await pool.has_begun(7))[5:]) == ["loud-3", "loud-4"]


async def test_who_has_nothing_finds_a_spare_place_in_a_full_pool(own):
    await own.provision(ack_wait=30)
    await queue(own, *loud(6))
    pool = Pool(own)
    async with pool.worker(capacity=2, spare=1) as worker:
        assert sorted(await pool.has_begun(2)) == ["loud-0", "loud-1"]
        await queue(own, "quiet-0", "quiet-1")
        assert (await pool.has_begun(3))[2] == "quiet-0"
        # Its second one waits for a place as all do, and is the next.
        pool.end("loud-0", "quiet-0")
        assert (await pool.has_begun(4))[3] == "quiet-1"
        assert worker.running == 2


async def test_a_spare_place_is_taken_at_once_by_an_organisation_that_had_it_before(own, monkeypatch):
    """A full worker looks only seldom at tasks that it knows, but at once at a new one."""
    monkeypatch.setattr("synth.bus.tasks.choice._SPARE_LOOK_AGAIN_S", 600.0)
    await own.provision(ack_wait=30)
    await queue(own, *loud(4))
    pool = Pool(own)
    async with pool.worker(capacity=2, spare=1):
        await pool.has_begun(2)
        for count, name in enumerate(("quiet-0", "quiet-1"), 3):
            await queue(own, name)
            assert (await pool.has_begun(count))[-1] == name
            pool.end(name)


async def test_tasks_that_were_looked_at_and_given_back_have_not_failed(own):
    """More often than a task may fail, which is twice."""
    await own.provision(ack_wait=30)
    await queue(own, *loud(4), *(f"quiet-{n}" for n in range(4)))
    pool, begun = Pool(own), list[str]()
    async with pool.worker(capacity=1):
        for count in range(1, 9):
            begun = await pool.has_begun(count)
            pool.end(begun[-1])
    assert [name.split("-")[0] for name in begun] == ["loud", "quiet"] * 4
    assert [name for name in begun if name.startswith("loud")] == loud(4)

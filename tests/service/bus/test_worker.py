"""Owners of tasks: one at a time, the next one when it dies or hangs, at once when it is told to stop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from synth.bus.publish import enqueue
from synth.bus.worker import Lease, TaskWorker
from synth.errors import Fenced, Permanent, Transient
from synth.work import Task
from tests.service.bus.own_server import ACK_WAIT_S, OwnServer, is_queued, next_dead_letter

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


@asynccontextmanager
async def working(own: OwnServer, owner: Owner, *, capacity: int = 1, give_up: GiveUp | None = None):
    """A worker in this process; the event that stops it."""
    bus = await own.connect("trainer")
    worker = TaskWorker(bus, kind="train", pool="default", capacity=capacity, run=owner, give_up=give_up)
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


async def test_a_task_that_is_done_leaves_the_queue(own):
    await own.provision()
    owner = Owner(finish)
    async with working(own, owner):
        await queue(own, 1)
        await owner.has_begun(1)
        await gone(own, a_task(1))
    assert owner.begun == ["job_1"]


async def test_a_task_outlives_its_owner_and_has_another_within_ack_wait(own):
    """The owner is a process of its own, and is killed."""
    await own.provision()
    await queue(own, 1)
    doomed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.service.bus.worker_process"),
        *(own.config.url, "trainer", own.config.users["trainer"]),
        stdout=asyncio.subprocess.PIPE,
    )
    assert doomed.stdout is not None
    assert await asyncio.wait_for(doomed.stdout.readline(), 30) == b"took job_1\n"
    heir = Owner(finish)
    async with working(own, heir):
        doomed.kill()
        killed = time.monotonic()
        await doomed.wait()
        await heir.has_begun(1)
        # Of ack_wait, and of the heartbeat after which the queue starts to count.
        assert heir.times[0] - killed < ACK_WAIT_S + 1.5
        await gone(own, a_task(1))


async def test_an_owner_keeps_its_task_for_much_longer_than_ack_wait(own):
    await own.provision()

    async def slow(task: Task, lease: Lease) -> None:
        lease.progress("slow", deadline=60)
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=3 * ACK_WAIT_S)

    owner, rival = Owner(slow), Owner(finish)
    async with working(own, owner):
        await queue(own, 1)
        await owner.has_begun(1)
        async with working(own, rival):
            await gone(own, a_task(1))
    assert (owner.begun, rival.begun) == (["job_1"], [])


async def test_a_redelivery_to_the_process_that_still_runs_the_task_is_adopted(own, monkeypatch):
    await own.provision()
    adopted, go_on = asyncio.Event(), asyncio.Event()
    adopt = Lease.adopt

    def note(lease: Lease, msg) -> None:
        adopt(lease, msg)
        adopted.set()

    monkeypatch.setattr(Lease, "adopt", note)
    # An outage that is longer than ack_wait: the queue hears nothing of us for so long.
    monkeypatch.setattr("synth.bus.worker.HEARTBEAT_S", 60)

    async def until_told(task: Task, lease: Lease) -> None:
        await go_on.wait()

    owner = Owner(until_told)
    async with working(own, owner, capacity=2) as (worker, _):
        await queue(own, 1)
        await asyncio.wait_for(adopted.wait(), 10)
        assert worker.running == 1
        go_on.set()
        # Done is said on the delivery that the queue knows.
        await gone(own, a_task(1))
    assert owner.begun == ["job_1"]


async def test_the_owner_goes_on_over_the_death_of_the_server(own):
    await own.provision()
    go_on = asyncio.Event()

    async def until_told(task: Task, lease: Lease) -> None:
        lease.progress("waiting", deadline=60)
        await go_on.wait()

    owner = Owner(until_told)
    async with working(own, owner, capacity=2):
        await queue(own, 1)
        await owner.has_begun(1)
        own.kill()
        own.start()
        await queue(own, 2)
        await owner.has_begun(2, timeout=20)
        go_on.set()
        await gone(own, a_task(1))
        await gone(own, a_task(2))
    assert owner.begun == ["job_1", "job_2"]


async def test_an_owner_that_hangs_loses_its_task(own):
    await own.provision()

    async def hang_once(task: Task, lease: Lease) -> None:
        lease.progress("stuck", deadline=0.3 if len(owner.begun) == 1 else 60)
        if len(owner.begun) == 1:
            await asyncio.Event().wait()

    owner = Owner(hang_once)
    async with working(own, owner):
        await queue(own, 1)
        await owner.has_begun(2)
        await gone(own, a_task(1))
    assert owner.begun == ["job_1", "job_1"]


async def test_a_worker_that_is_told_to_stop_hands_its_tasks_to_another_at_once(own):
    await own.provision(ack_wait=60)
    leaving, heir = Owner(hold), Owner(finish)
    async with working(own, leaving, capacity=2) as (_, stop):
        await queue(own, 1, 2)
        await leaving.has_begun(2)
        async with working(own, heir, capacity=2):
            stopped = time.monotonic()
            stop.set()
            await heir.has_begun(2)
            assert heir.times[-1] - stopped < 3
            await gone(own, a_task(1))
            await gone(own, a_task(2))


async def test_a_worker_takes_no_more_than_its_capacity(own):
    await own.provision()
    gate = asyncio.Semaphore(0)

    async def gated(task: Task, lease: Lease) -> None:
        lease.progress("gated", deadline=60)
        await gate.acquire()

    owner = Owner(gated)
    async with working(own, owner, capacity=2) as (worker, _):
        await queue(own, 1, 2, 3)
        await owner.has_begun(2)
        with pytest.raises(TimeoutError):
            await owner.has_begun(3, timeout=1.5)
        assert worker.running == 2
        gate.release()
        await owner.has_begun(3)
        gate.release()
        gate.release()
        await gone(own, a_task(3))
    assert sorted(owner.begun) == ["job_1", "job_2", "job_3"]


@pytest.mark.parametrize("error", [Transient("no room", delay=0.1), ValueError("a bug")])
async def test_a_task_that_fails_comes_back(own, error, monkeypatch):
    await own.provision()

    async def fail_once(task: Task, lease: Lease) -> None:
        if len(owner.begun) == 1:
            raise error

    owner = Owner(fail_once)
    async with working(own, owner):
        await queue(own, 1)
        await owner.has_begun(2)
        await gone(own, a_task(1))


async def test_a_task_that_cannot_be_done_is_a_dead_letter(own):
    bus = await own.provision()

    async def refuse(task: Task, lease: Lease) -> None:
        raise Permanent("no such model")

    owner = Owner(refuse)
    async with working(own, owner):
        await queue(own, 1)
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await gone(own, a_task(1))
    assert dead.subject == f"dead.trainer.{a_task(1).subject}"
    assert dead.headers["Synth-Reason"] == "no such model"
    assert owner.begun == ["job_1"]


async def test_whoever_waits_for_a_task_is_told_of_its_death_before_it_leaves_the_queue(own):
    bus = await own.provision()
    told: list[tuple[str, str, bool]] = []

    async def refuse(task: Task, lease: Lease) -> None:
        raise Permanent("no such model")

    async def give_up(task: Task, reason: str) -> None:
        told.append((task.job_id, reason, await is_queued(bus, task.subject)))

    async with working(own, Owner(refuse), give_up=give_up):
        await queue(own, 1)
        await gone(own, a_task(1))
    assert told == [("job_1", "no such model", True)]


async def test_a_bug_is_tried_a_few_times_and_then_given_up(own, monkeypatch):
    bus = await own.provision()
    monkeypatch.setattr("synth.bus.worker.MAX_DELIVERIES", 2)
    monkeypatch.setattr("synth.bus.worker._BUG_PAUSE_S", 0.1)
    told: list[str] = []

    async def fail(task: Task, lease: Lease) -> None:
        raise KeyError("a bug")

    async def give_up(task: Task, reason: str) -> None:
        told.append(reason)

    owner = Owner(fail)
    async with working(own, owner, give_up=give_up):
        await queue(own, 1)
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await gone(own, a_task(1))
    assert owner.begun == ["job_1", "job_1"]
    assert told == [dead.headers["Synth-Reason"]] == ["after 2 deliveries: KeyError('a bug')"]


async def test_the_clean_up_of_an_owner_that_hung_is_left_in_peace(own, monkeypatch):
    await own.provision()
    monkeypatch.setattr("synth.bus.worker.HEARTBEAT_S", 0.1)
    cleaned, later_beats = asyncio.Event(), asyncio.Event()
    let_go, beats = Lease.let_go, 0

    def count(lease: Lease) -> bool:
        nonlocal beats
        beats += 1
        if beats == 4:
            later_beats.set()
        return let_go(lease)

    monkeypatch.setattr(Lease, "let_go", count)

    async def hang(task: Task, lease: Lease) -> None:
        lease.progress("stuck", deadline=0.1)
        if len(owner.begun) > 1:
            return
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.wait_for(later_beats.wait(), 10)
            cleaned.set()

    owner = Owner(hang)
    async with working(own, owner):
        await queue(own, 1)
        await asyncio.wait_for(cleaned.wait(), 10)
        await gone(own, a_task(1))


async def test_an_owner_that_was_fenced_leaves_the_task_to_the_one_that_has_it(own):
    await own.provision()

    async def fenced_once(task: Task, lease: Lease) -> None:
        if len(owner.begun) == 1:
            raise Fenced("attempt 2 has started")

    owner = Owner(fenced_once)
    async with working(own, owner):
        await queue(own, 1)
        await owner.has_begun(1)
        # Nobody answered for it: the queue gives it on after ack_wait.
        await owner.has_begun(2)
        await gone(own, a_task(1))


async def test_a_message_that_is_no_task_ends_neither_the_worker_nor_its_tasks(own):
    bus = await own.provision()
    owner = Owner(finish)
    async with working(own, owner):
        await bus.js.publish("work.train.default.org_a.job_0", b"garbage", stream="WORK")
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await queue(own, 1)
        await owner.has_begun(1)
    assert dead.body == b"garbage"


async def test_a_worker_ends_when_its_queue_is_deleted(own):
    bus = await own.provision()
    trainer = await own.connect("trainer")
    worker = TaskWorker(trainer, kind="train", pool="default", capacity=1, run=Owner(finish))
    await bus.js.delete_consumer("WORK", "train-default")
    with pytest.raises(Permanent, match="the queue train-default is gone"):
        await asyncio.wait_for(worker.serve(asyncio.Event()), 10)


async def test_a_worker_ends_when_its_queue_is_deleted_while_it_pulls(own):
    bus = await own.provision()
    owner = Owner(finish)
    trainer = await own.connect("trainer")
    worker = TaskWorker(trainer, kind="train", pool="default", capacity=1, run=owner)
    serving = asyncio.create_task(worker.serve(asyncio.Event()))
    await queue(own, 1)
    await owner.has_begun(1)
    await bus.js.delete_consumer("WORK", "train-default")
    with pytest.raises(Permanent, match="the queue train-default is gone"):
        await asyncio.wait_for(serving, 15)

"""Owners of tasks: one at a time, the next one when it dies or hangs, at once when it is told to stop."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from synth.bus.tasks.lease import Lease
from synth.errors import Fenced, Permanent, Transient
from synth.trainer.owner.processes.learner_process import LearnerStopped
from synth.work import Task
from tests.service.bus.own_server import ACK_WAIT_S, is_queued, next_dead_letter
from tests.service.bus.owners import Owner, a_task, a_worker, finish, gone, hold, queue, working


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
        *(own.config.url, "trainer", own.config.users["trainer"], "hold"),
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
        assert heir.times[0] - killed < 8
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


@pytest.mark.parametrize("capacity", [2, 1], ids=["with room", "without room"])
async def test_a_redelivery_to_the_process_that_still_runs_the_task_is_adopted(own, monkeypatch, capacity: int):
    await own.provision()
    adopted, go_on = asyncio.Event(), asyncio.Event()
    adopt = Lease.adopt

    def note(lease: Lease, msg, **at: float) -> None:
        adopt(lease, msg, **at)
        adopted.set()

    monkeypatch.setattr(Lease, "adopt", note)
    # An outage that is longer than ack_wait: the queue hears nothing of us for so long.
    monkeypatch.setattr("synth.bus.tasks.worker.HEARTBEAT_S", 60)

    async def until_told(task: Task, lease: Lease) -> None:
        await go_on.wait()

    owner = Owner(until_told)
    async with working(own, owner, capacity=capacity) as (worker, _):
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
            assert heir.times[-1] - stopped < 20
            await gone(own, a_task(1))
            await gone(own, a_task(2))


async def test_a_task_that_comes_while_its_worker_is_told_to_stop_goes_to_another_at_once(own):
    """The pull is open when the stop comes: the task is taken, and handed back in the same turn of the loop."""
    await own.provision(ack_wait=60)
    heir = Owner(finish)
    async with working(own, Owner(hold)) as (worker, stop):
        pulled_at = worker.last_poll
        while worker.last_poll == pulled_at:  # noqa: ASYNC110 - nothing tells of a pull
            await asyncio.sleep(0)
        stop.set()
        await queue(own, 1)
    async with working(own, heir):
        await heir.has_begun(1)


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


@pytest.mark.parametrize(
    ("error", "said"),
    [(KeyError("a bug"), "KeyError('a bug')"), (LearnerStopped("it was killed"), "it was killed")],
    ids=["a bug", "a training process that ends"],
)
async def test_a_bug_is_tried_a_few_times_and_then_given_up(own, monkeypatch, error: Exception, said: str):
    bus = await own.provision()
    monkeypatch.setattr("synth.bus.tasks.worker._BUG_PAUSE_S", 0.1)
    told: list[str] = []

    async def fail(task: Task, lease: Lease) -> None:
        raise error

    async def give_up(task: Task, reason: str) -> None:
        told.append(reason)

    owner = Owner(fail)
    async with working(own, owner, give_up=give_up):
        await queue(own, 1)
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await gone(own, a_task(1))
    assert owner.begun == ["job_1", "job_1"]
    assert told == [dead.headers["Synth-Reason"]] == [f"after 2 failures in a row: {said}"]


async def test_the_clean_up_of_an_owner_that_hung_is_left_in_peace(own, monkeypatch):
    await own.provision()
    monkeypatch.setattr("synth.bus.tasks.worker.HEARTBEAT_S", 0.1)
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


NESTED = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("body", [b"garbage", NESTED], ids=["no JSON", "nested deeply"])
async def test_a_message_that_is_no_task_ends_neither_the_worker_nor_its_tasks(own, body: bytes):
    bus = await own.provision()
    owner = Owner(finish)
    async with working(own, owner):
        await bus.js.publish("work.train.default.org_a.job_0", body, stream="WORK")
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await queue(own, 1)
        await owner.has_begun(1)
    assert dead.body == body


async def test_a_worker_ends_when_its_queue_is_deleted(own):
    bus = await own.provision()
    trainer = await own.connect("trainer")
    worker = a_worker(trainer, Owner(finish))
    await bus.js.delete_consumer("WORK", "train-default")
    with pytest.raises(Permanent, match="the queue train-default is gone"):
        await asyncio.wait_for(worker.serve(asyncio.Event()), 10)


async def test_a_worker_ends_when_its_queue_is_deleted_while_it_pulls(own):
    bus = await own.provision()
    owner = Owner(finish)
    trainer = await own.connect("trainer")
    worker = a_worker(trainer, owner)
    serving = asyncio.create_task(worker.serve(asyncio.Event()))
    await queue(own, 1)
    await owner.has_begun(1)
    await bus.js.delete_consumer("WORK", "train-default")
    with pytest.raises(Permanent, match="the queue train-default is gone"):
        await asyncio.wait_for(serving, 15)

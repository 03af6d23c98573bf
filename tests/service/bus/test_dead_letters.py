"""Dead letters: whose job they are of is told, and what is retried is handled as it was the first time."""

from __future__ import annotations

import asyncio

from synth.bus.history.job_log import read_job
from synth.bus.publish import enqueue_redelivery
from synth.bus.replay import replay_messages
from synth.bus.server.topology import DEAD
from synth.errors import Permanent
from synth.events import JobCreated
from synth.work import Redelivery, Task, task_of
from tests.service.bus.own_server import OwnServer, next_dead_letter
from tests.service.bus.owners import Owner, a_task, finish, gone, queue, working
from tests.service.bus.test_delivery import Handler, submit, validator


def test_a_task_can_be_read_from_its_subject():
    for task in (a_task(), Task(kind="serve", pool="gpu", org="org_a", job_id="job_1", term=3, index=2)):
        assert task_of(task.subject) == task
    for subject in ("work.train.default.org_a.job_1", "work.train.default.org_a.job_1.x", "job.created.org_a.job_1"):
        assert task_of(subject) is None
    for term in ("x", "-1", "9" * 20, "٣", ""):
        assert task_of(f"work.train.default.org_a.job_1.{term}") is None
    assert task_of("work.retry.files-file-uploaded.org_a.file_1.7") is None


async def test_who_waits_for_a_task_that_cannot_be_read_is_told(own: OwnServer):
    bus = await own.provision()
    told: list[tuple[Task, str]] = []

    async def give_up(task: Task, reason: str) -> None:
        told.append((task, reason))

    inference = await own.connect("inference")
    await inference.js.publish(a_task(1).subject, b"{no task")
    async with working(own, Owner(finish), give_up=give_up):
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
        await queue(own, 2)
        await gone(own, a_task(2))
        await gone(own, a_task(1))
    assert [task for task, _ in told] == [a_task(1)]
    assert dead.headers["Synth-Reason"] == told[0][1]


async def test_a_task_of_a_job_that_is_not_there_leaves_the_queue(own: OwnServer):
    bus = await own.provision()

    async def need(task: Task) -> None:
        (await read_job(bus, task.org, task.job_id)).need(JobCreated)

    inference = await own.connect("inference")
    await inference.js.publish(a_task(1).subject, b"{no task")
    async with working(own, Owner(lambda task, lease: need(task)), give_up=lambda task, reason: need(task)):
        await queue(own, 2)
        for n in (1, 2):
            await gone(own, a_task(n))
    assert (await bus.js.stream_info("DEAD")).state.messages == 2


async def test_a_task_that_is_given_up_leaves_its_queue_also_where_nobody_can_be_told(own: OwnServer):
    bus = await own.provision()

    async def give_up(task: Task, reason: str) -> None:
        raise Permanent("the log is damaged")

    async def fail(task: Task, lease) -> None:
        raise Permanent("the log is damaged")

    inference = await own.connect("inference")
    await inference.js.publish(a_task(1).subject, b"{no task")
    async with working(own, Owner(fail), give_up=give_up):
        await queue(own, 2)
        for n in (1, 2):
            await gone(own, a_task(n))
    assert (await bus.js.stream_info("DEAD")).state.messages == 2


async def test_a_retried_letter_is_handled_as_the_event_that_it_was_and_fails_as_a_letter_of_its_own(own: OwnServer):
    bus = await own.provision()

    def act(name: str, tries: int) -> None:
        if tries < 3:
            raise Permanent(f"try {tries}")

    handler = Handler(act, enough=1)
    gateway = await own.connect("gateway")
    async with validator(own, handler):
        await submit(own, "a")
        await asyncio.wait_for(next_dead_letter(bus), 10)
        for letter in (1, 2):
            again = Redelivery(seq=1, letter=letter)
            await enqueue_redelivery(gateway, again, queue="validator-job-created", org="org_a", key="job_1")
            async with asyncio.timeout(10):
                while (await bus.js.stream_info("WORK")).state.messages or len(handler.seen) <= letter:
                    continue
    assert handler.names == ["a", "a", "a"]
    letters = await replay_messages(bus.nc, ["dead.>"], stream=DEAD)
    assert [(m.subject.rsplit(".", 2)[0], (m.headers or {})["Synth-Reason"]) for m in letters] == [
        ("dead.validator.job.created", "try 1"),
        ("dead.validator.job.created", "try 2"),
    ]
    assert letters[0].data == letters[1].data


async def test_a_retry_of_an_event_that_is_not_in_the_log_is_a_letter_that_says_so(own: OwnServer):
    bus = await own.provision()
    gateway = await own.connect("gateway")
    async with validator(own, Handler(lambda name, tries: None, enough=1)):
        again = Redelivery(seq=99, letter=1)
        await enqueue_redelivery(gateway, again, queue="validator-job-created", org="org_a", key="job_1")
        dead = await asyncio.wait_for(next_dead_letter(bus), 10)
    assert "no event to deliver again" in dead.headers["Synth-Reason"]

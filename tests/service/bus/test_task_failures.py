"""What counts as a failure of a task, and what becomes of one that has failed too often."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest

from synth.bus.connection import Connection
from synth.bus.kv.task_failures import TaskFailures
from synth.bus.tasks.lease import Lease
from synth.errors import Transient
from synth.work import Task
from tests.service.bus.own_server import OwnServer, next_dead_letter
from tests.service.bus.owners import Owner, a_task, finish, gone, hold, queue, working

FAILURES = 2
"""In a row, which `working` allows."""


async def killed_worker(own: OwnServer, *, act: str) -> None:
    """A worker in a process of its own that takes the task, and is killed: by itself, or by us."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.service.bus.worker_process"),
        *(own.config.url, "trainer", own.config.users["trainer"], act),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"took job_1\n"
            if act == "hold":
                process.kill()
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


async def test_a_task_that_kills_its_process_is_buried_before_it_runs_again(own: OwnServer):
    bus = await own.provision()
    told: list[str] = []

    async def give_up(task: Task, reason: str) -> None:
        told.append(reason)

    await queue(own, 1)
    for _ in range(FAILURES):
        await killed_worker(own, act="die")
    owner = Owner(finish)
    async with working(own, owner, give_up=give_up):
        async with asyncio.timeout(20):
            dead = await next_dead_letter(bus)
        await gone(own, a_task(1))
    assert owner.begun == []
    assert told == [dead.headers["Synth-Reason"]]
    assert told == ["2 times in a row its worker failed or died before it had advanced"]


async def test_what_is_handed_back_in_good_order_is_no_failure(own: OwnServer, monkeypatch: pytest.MonkeyPatch):
    """Six hand-overs and drains, and then one bad answer: the task is tried again."""
    monkeypatch.setattr("synth.bus.tasks.worker._BUG_PAUSE_S", 0.1)
    await own.provision()

    async def act(task: Task, lease: Lease) -> None:
        lease.progress("held", deadline=60)
        match len(owner.begun):
            case 1 | 2 | 3:
                raise Transient("no room", delay=0.01)
            case 4 | 5 | 6:
                await asyncio.Event().wait()
            case 7:
                raise RecursionError("a bad answer")
            case _:
                return

    owner = Owner(act)
    await queue(own, 1)
    for begun in (4, 5, 6):
        async with working(own, owner):
            await owner.has_begun(begun)
    async with working(own, owner):
        await owner.has_begun(8)
        await gone(own, a_task(1))
    assert len(owner.begun) == 8


async def test_a_task_that_advances_may_lose_any_number_of_workers(own: OwnServer):
    await own.provision()
    trainer = await own.connect("trainer")
    for _ in range(2 * FAILURES):
        # As its worker does; then it is killed.
        failures = TaskFailures(trainer, a_task(1))
        assert await failures.begin(alone=True) == 0
        await failures.reset()
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 0
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 1


async def test_a_failure_behind_an_advance_is_the_first(own: OwnServer):
    await own.provision()
    trainer = await own.connect("trainer")
    for _ in range(3):
        failures = TaskFailures(trainer, a_task(1))
        assert await failures.begin(alone=True) in (0, 1)
        await failures.reset()
        await failures.fail()
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 1


async def test_what_is_handed_back_while_the_bus_is_away_is_no_failure(own: OwnServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("synth.bus.kv.task_failures._WRITE_S", 0.1)
    await own.provision()
    fail = asyncio.Event()

    async def act(task: Task, lease: Lease) -> None:
        lease.progress("waiting", deadline=60)
        if len(owner.begun) <= FAILURES:
            await fail.wait()
            fail.clear()
            raise Transient("the bus is away", delay=0.01)

    owner = Owner(act)
    async with working(own, owner) as (worker, _):
        await queue(own, 1)
        for outage in range(1, FAILURES + 1):
            await owner.has_begun(outage, timeout=20)
            own.kill()
            fail.set()
            async with asyncio.timeout(10):
                while worker.running:  # noqa: ASYNC110 - nothing tells when it ends, and the bus is away
                    await asyncio.sleep(0)
            own.start()
        await owner.has_begun(FAILURES + 1, timeout=20)
        await gone(own, a_task(1))


async def test_a_worker_that_has_lost_its_task_takes_only_itself_out_of_the_count(own: OwnServer):
    await own.provision()
    trainer = await own.connect("trainer")
    first, second = TaskFailures(trainer, a_task(1)), TaskFailures(trainer, a_task(1))
    await first.begin(alone=True)
    await second.begin(alone=True)
    await first.reset()
    await first.forgive()
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 1
    # What has ended is forgotten.
    await second.forget()
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 0


async def test_a_hand_back_that_is_cancelled_is_owed(own: OwnServer, monkeypatch):
    await own.provision()
    trainer = await own.connect("trainer")
    failures = TaskFailures(trainer, a_task(1))
    await failures.begin(alone=False)

    async def never(change: object) -> bool:
        return await asyncio.Event().wait()

    with monkeypatch.context() as slow:
        slow.setattr(failures, "_say", never)
        forgiving = asyncio.create_task(failures.forgive())
        await asyncio.sleep(0)
        forgiving.cancel()
        await asyncio.wait([forgiving])
    assert failures.owed
    await failures.forgive()
    assert (failures.owed, await TaskFailures(trainer, a_task(1)).suspicions()) == (False, 0)


async def test_a_task_that_kills_its_process_buries_none_of_its_neighbours(own: OwnServer):
    """Six in one process, of which one kills it: first with all of them beside it, then alone."""
    bus = await own.provision(ack_wait=0.5)
    poison, *neighbours = [a_task(n) for n in range(6)]
    await queue(own, *range(6))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.service.bus.worker_process"),
        *(own.config.url, "trainer", own.config.users["trainer"], "6"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            dead = await next_dead_letter(bus)
            for task in neighbours:
                await gone(own, task)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert dead.subject.endswith(poison.subject)
    assert dead.headers["Synth-Reason"] == "2 times in a row its worker failed or died before it had advanced"
    assert (await bus.js.stream_info("DEAD")).state.messages == 1
    assert (await process.stdout.read()).split() == [b"died"] * (2 + FAILURES)


async def test_suspects_run_alone_one_after_the_other_and_then_together(own: OwnServer):
    """Neither ends, nor advances: each has the worker for a time, and then shares it with what made room."""
    await own.provision()
    trainer = await own.connect("trainer")
    for _ in range(2):
        for n in (1, 2):
            await TaskFailures(trainer, a_task(n)).begin(alone=False)
    company: dict[str, list[int]] = {}

    async def note(task: Task, lease: Lease) -> None:
        company.setdefault(task.job_id, []).append(worker.running)
        await hold(task, lease)

    async with working(own, Owner(note), capacity=3, alone_s=0.2) as (worker, _):
        await queue(own, 3)
        await until(trainer, lambda: "job_3" in company)
        await queue(own, 1)
        await until(trainer, lambda: "job_1" in company)
        await queue(own, 2)
        await until(trainer, lambda: "job_2" in company and worker.running == 3)
        assert not worker.runs_alone
    assert company["job_1"][0] == company["job_2"][0] == 1
    # None of this is a failure of theirs, nor suspicious any more.
    for n in (1, 2, 3):
        after = TaskFailures(trainer, a_task(n))
        assert (await after.suspicions(), await after.begin(alone=True)) == (0, 0)


async def test_a_suspect_that_cannot_be_run_now_empties_its_worker_once(own: OwnServer):
    await own.provision()
    trainer = await own.connect("trainer")
    for _ in range(2):
        await TaskFailures(trainer, a_task(1)).begin(alone=False)

    async def act(task: Task, lease: Lease) -> None:
        if task.job_id == "job_1" and owner.begun.count("job_1") < 5:
            raise Transient("not now", delay=0.01)
        await hold(task, lease)

    owner = Owner(act)
    async with working(own, owner, capacity=3) as (worker, _):
        await queue(own, 2)
        await until(trainer, lambda: "job_2" in owner.begun)
        await queue(own, 1)
        await until(trainer, lambda: owner.begun.count("job_1") == 5 and worker.running == 2)
    assert owner.begun.count("job_2") <= 2


async def until(bus: Connection, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await bus.nc.flush()


async def test_an_entry_in_another_form_counts_as_none(own: OwnServer):
    await own.provision()
    trainer = await own.connect("trainer")
    entries = await trainer.js.key_value("task_failures")
    await entries.put(a_task(1).subject.removeprefix("work."), b"5")
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 0
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 1


async def test_an_advance_that_the_bus_did_not_hear_is_said_with_the_next(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch
):
    await own.provision()
    trainer = await own.connect("trainer")
    await TaskFailures(trainer, a_task(1)).begin(alone=True)
    failures = TaskFailures(trainer, a_task(1))
    await failures.begin(alone=True)
    with monkeypatch.context() as away:
        away.setattr("synth.bus.kv.task_failures._WRITE_S", 0)
        await failures.reset()
    await failures.reset()
    assert await TaskFailures(trainer, a_task(1)).begin(alone=True) == 0

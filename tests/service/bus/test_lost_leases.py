"""A worker whose task was given to another: what it says of the task does not touch the other one's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from synth.bus.connection import connect
from synth.bus.server.topology import WORK
from synth.bus.tasks.lease import Lease
from synth.bus.tasks.pull import pull
from synth.errors import Permanent
from synth.work import Task
from tests.service.bus.own_server import ACK_WAIT_S, OwnServer, left_in
from tests.service.bus.owners import Owner, a_task, a_worker, gone, hold, queue, working
from tests.soak.tcp_proxy import Link, TcpProxy


@pytest.mark.parametrize(
    "ending", ["handed back", pytest.param("handed back meanwhile", marks=pytest.mark.long), "dead letter"]
)
async def test_a_worker_that_was_cut_off_neither_takes_its_successors_task_away_nor_ends_it(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch, ending: str
):
    # As long as it takes to ask the bus in vain, and longer.
    await own.provision(ack_wait=8 if ending == "handed back meanwhile" else ACK_WAIT_S)
    fail, go_on = asyncio.Event(), asyncio.Event()
    adopted: list[str] = []
    told: list[str] = []
    monkeypatch.setattr(Lease, "adopt", lambda lease, msg, **at: adopted.append(msg.subject))

    async def fail_when_told(task: Task, lease: Lease) -> None:
        await fail.wait()
        raise Permanent("no such model")

    async def go_on_when_told(task: Task, lease: Lease) -> None:
        lease.progress("held", deadline=60)
        await go_on.wait()

    async def give_up(task: Task, reason: str) -> None:
        told.append(reason)

    first, second = Owner(fail_when_told), Owner(go_on_when_told)
    proxy = await TcpProxy(own.config.port).start()
    try:
        settings = own.settings("trainer").model_copy(update={"nats_url": f"nats://127.0.0.1:{proxy.port}"})
        bus = await connect(settings, "trainer")
        own.opened.append(bus)
        worker = a_worker(bus, first, failures=6, give_up=give_up)
        stop = asyncio.Event()
        serving = asyncio.create_task(worker.serve(stop))
        await queue(own, 1)
        await first.has_begun(1)
        proxy.link = Link.FROZEN
        if ending == "handed back meanwhile":
            # It is still sure of its task, and what it says waits on its way.
            stop.set()
        async with working(own, second, capacity=3):
            await second.has_begun(1, timeout=20)
            proxy.link = Link.OPEN
            if ending == "dead letter":
                fail.set()
                async with asyncio.timeout(10):
                    while worker.running:
                        await bus.nc.flush()
            stop.set()
            await serving
            await bus.nc.flush()
            # What the first one said has arrived, and whatever came of it would be delivered before this one.
            await queue(own, 2)
            await second.has_begun(2)
            go_on.set()
            await gone(own, a_task(1))
            await gone(own, a_task(2))
    finally:
        await proxy.close()
    assert (first.begun, second.begun, adopted, told) == (["job_1"], ["job_1", "job_2"], [], [])


async def test_a_worker_without_room_sends_on_what_is_not_its_own(own: OwnServer, monkeypatch: pytest.MonkeyPatch):
    """Its hold is in doubt, so it asks for work; what it gets may be a task for another."""
    await own.provision(ack_wait=60)
    monkeypatch.setattr(Lease, "in_doubt", property(lambda lease: True))
    full, free = Owner(hold), Owner(hold)
    async with working(own, full) as (worker, _):
        await queue(own, 1)
        await full.has_begun(1)
        await queue(own, 2)
        async with working(own, free):
            await free.has_begun(1)
        assert worker.running == 1
    assert (full.begun, free.begun) == (["job_1"], ["job_2"])


@pytest.mark.parametrize("capacity", [1, 2], ids=["without room", "with room"])
async def test_a_worker_that_cannot_end_a_task_leaves_it_to_another_and_says_so(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch, capacity: int
):
    await own.provision()
    monkeypatch.setattr("synth.bus.tasks.worker.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("synth.bus.cancellation.AGAIN_S", 0.1)
    monkeypatch.setattr("synth.bus.cancellation.WITHIN_S", 0.3)
    adopted: list[str] = []
    monkeypatch.setattr(Lease, "adopt", lambda lease, msg, **at: adopted.append(msg.subject))
    end = asyncio.Event()

    async def never_end(task: Task, lease: Lease) -> None:
        lease.progress("stuck", deadline=0.1)
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    stuck, heir = Owner(never_end), Owner(hold)
    async with working(own, stuck, capacity=capacity) as (worker, _):
        await queue(own, 1)
        await stuck.has_begun(1)
        try:
            async with asyncio.timeout(10):
                while worker.health_problem() is None:
                    await own.opened[0].nc.flush()
            problem = worker.health_problem()
            async with working(own, heir):
                await heir.has_begun(1)
        finally:
            end.set()
    assert problem == f"cannot end {a_task(1).subject}, which hung and was cancelled"
    assert (stuck.begun, heir.begun, adopted) == (["job_1"], ["job_1"], [])


async def test_what_came_for_a_worker_without_room_is_not_taken_when_it_has_room_again(own: OwnServer):
    """Answers to several of its pulls come at once, when a link passes on again what is said to the worker."""
    bus = await own.provision(ack_wait=4)
    go_on, stop = asyncio.Event(), asyncio.Event()

    async def go_on_when_told(task: Task, lease: Lease) -> None:
        lease.progress("held", deadline=60)
        await go_on.wait()

    first, second = Owner(go_on_when_told), Owner(hold)
    proxy = await TcpProxy(own.config.port).start()
    try:
        settings = own.settings("trainer").model_copy(update={"nats_url": f"nats://127.0.0.1:{proxy.port}"})
        own.opened.append(await connect(settings, "trainer"))
        worker = a_worker(own.opened[-1], first)
        serving = asyncio.create_task(worker.serve(stop))
        polls = {worker.last_poll}
        async with asyncio.timeout(10):
            while len(polls) < 3:
                await own.opened[-1].nc.flush()
                polls.add(worker.last_poll)
        # It asks for work again and again by now, and for nothing else.
        proxy.link = Link.ONE_WAY
        await queue(own, 1, 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(2.5):
                while await left_in(bus, WORK, "train-default") != (0, 2):
                    continue
        proxy.link = Link.OPEN
        await first.has_begun(1)
        async with working(own, second):
            await second.has_begun(1)
            go_on.set()
            await gone(own, a_task(int(first.begun[0].removeprefix("job_"))))
            await queue(own, 3)
            await first.has_begun(2)
            assert (first.begun[1], sorted([first.begun[0], *second.begun])) == ("job_3", ["job_1", "job_2"])
            stop.set()
            await serving
    finally:
        stop.set()
        await proxy.close()


async def test_a_worker_that_was_frozen_with_a_delivery_leaves_the_task_to_whoever_has_it_now(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch
):
    await own.provision()
    await queue(own, 1)
    rivals: list[subprocess.Popen[bytes]] = []
    began_beside_it: list[bool] = []
    looked = asyncio.Event()

    def freeze() -> None:
        """Nothing else runs in this process until another one has the task."""
        rival = subprocess.Popen(
            [*(sys.executable, "-m", "tests.service.bus.worker_process"), own.config.url, "trainer", password, "hold"],
            stdout=subprocess.PIPE,
        )
        rivals.append(rival)
        assert rival.stdout is not None
        assert rival.stdout.readline() == b"took job_1\n"

    async def pull_and_freeze(*arguments: Any, **options: Any) -> list[Any]:
        if rivals:
            looked.set()
        found = await pull(*arguments, **options)
        if not rivals:
            freeze()
        return found

    async def note(task: Task, lease: Lease) -> None:
        began_beside_it.append(rivals[0].poll() is None)
        looked.set()

    password = own.config.users["trainer"]
    monkeypatch.setattr("synth.bus.tasks.worker.pull", pull_and_freeze)
    async with working(own, Owner(note)):
        await asyncio.wait_for(looked.wait(), 30)
        rivals[0].kill()
        rivals[0].wait(10)
        await gone(own, a_task(1))
    assert began_beside_it == [False]

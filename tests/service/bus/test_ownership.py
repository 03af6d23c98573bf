"""Owning a job: what interrupts its work, and which ending wins."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.history.fencing import start_collection
from synth.bus.history.job_log import append_decided, read_job
from synth.bus.history.ownership import Ownership
from synth.bus.publish import Publisher
from synth.errors import Fenced, Permanent, Problem
from synth.events import (
    JobCancelled,
    JobCancelRequested,
    JobFailed,
    JobPaused,
    JobPauseRequested,
    JobSucceeded,
    PolicyRefused,
    RolloutBlocked,
    TrainStep,
)
from synth.events.catalogue import Event
from synth.jobs.lifecycle import State
from tests.service.bus.test_job_log import verified_job

PROBLEM = Problem(what="it does not work")


async def owned_job(bus_as) -> Ownership:
    org, job = await verified_job(bus_as)
    ownership = await Ownership.take(await bus_as("trainer"), org, job, worker="w", term=0)
    assert ownership is not None
    return ownership


async def ask(bus_as, ownership: Ownership, wish: Event) -> None:
    """The user's wish to cancel or to pause."""
    fence = ownership.fence
    await append_decided(await bus_as("gateway"), fence.org, fence.job_id, lambda _: wish)


class EndlessWork:
    """Work that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    async def run(self) -> Event:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


@pytest.mark.parametrize(
    ("wish", "ending"),
    [(JobCancelRequested(), JobCancelled(step=7)), (JobPauseRequested(), JobPaused(step=7))],
    ids=["cancelled", "paused"],
)
async def test_the_users_wish_ends_the_work_at_the_last_announced_step(bus_as, wish: Event, ending: Event):
    ownership, work = await owned_job(bus_as), EndlessWork()
    await ask(bus_as, ownership, wish)
    async with asyncio.timeout(10):
        assert await ownership.run(work.run(), last_step=lambda: 7) == ending
    assert work.cancelled


async def test_a_pause_has_the_reason_that_it_was_asked_for_with(bus_as):
    ownership = await owned_job(bus_as)
    await ask(bus_as, ownership, JobPauseRequested(reason="the GPU-seconds are taken"))
    await ownership.end(JobPaused(step=7))
    history = await read_job(ownership.bus, ownership.fence.org, ownership.fence.job_id)
    assert history.last(JobPaused) == JobPaused(step=7, reason="the GPU-seconds are taken")


@pytest.mark.parametrize(
    ("service", "obstacle", "code"),
    [
        ("rollouts", RolloutBlocked(iteration=1, problem=PROBLEM), "task_app_failed"),
        ("inference", PolicyRefused(problem=PROBLEM), "cannot_serve"),
    ],
    ids=["environment", "engine"],
)
async def test_an_obstacle_fails_the_job_with_its_problem(bus_as, service: str, obstacle: Event, code: str):
    ownership, work = await owned_job(bus_as), EndlessWork()
    fence = ownership.fence
    publisher = Publisher(await bus_as(service))
    if isinstance(obstacle, RolloutBlocked):
        collector = await start_collection(await bus_as(service), fence.org, fence.job_id, worker="c")
        await publisher.fenced(obstacle, fence=collector, id="1")
    else:
        await publisher.once(obstacle, org=fence.org, key=fence.job_id, id="1")
    async with asyncio.timeout(10):
        assert await ownership.run(work.run()) == JobFailed(code=code, problem=PROBLEM)
    assert work.cancelled


async def test_work_that_can_never_succeed_fails_the_job(bus_as):
    async def impossible() -> Event:
        raise Permanent("no such file")

    ownership = await owned_job(bus_as)
    ending = await ownership.run(impossible())
    assert ending == JobFailed(code="cannot_run", problem=Problem(what="no such file"))


@pytest.mark.parametrize(
    "ending",
    [JobSucceeded(steps=9), JobPaused(step=9), JobFailed(code="internal", problem=PROBLEM)],
    ids=["success", "pause", "failure"],
)
async def test_a_cancellation_that_came_meanwhile_wins_over_any_other_ending(bus_as, ending: Event):
    ownership = await owned_job(bus_as)
    await ask(bus_as, ownership, JobCancelRequested())
    await ownership.end(ending, step=9)
    history = await read_job(ownership.bus, ownership.fence.org, ownership.fence.job_id)
    assert history.state is State.CANCELLED
    assert history.last(JobCancelled) == JobCancelled(step=9)


async def test_a_wish_that_its_attempt_did_not_live_to_fulfil_is_left_to_the_next(bus_as):
    first = await owned_job(bus_as)
    await ask(bus_as, first, JobPauseRequested())
    second = await Ownership.take(first.bus, first.fence.org, first.fence.job_id, worker="w", term=0)
    assert second is not None
    assert (first.requested_ending(step=3), second.requested_ending(step=3)) == (None, JobPaused(step=3))


async def test_a_job_that_has_ended_has_no_next_owner(bus_as):
    ownership = await owned_job(bus_as)
    await ownership.end(JobSucceeded(steps=9))
    assert await Ownership.take(ownership.bus, ownership.fence.org, ownership.fence.job_id, worker="w", term=0) is None


async def test_an_attempt_whose_successor_has_started_ends_its_work_and_does_not_end_the_job(bus_as):
    first, work = await owned_job(bus_as), EndlessWork()
    running = asyncio.create_task(first.run(work.run()))
    second = await Ownership.take(first.bus, first.fence.org, first.fence.job_id, worker="w", term=0)
    with pytest.raises(Fenced):
        async with asyncio.timeout(10):
            await running
    assert work.cancelled
    assert second is not None
    await second.end(JobSucceeded(steps=1))


@pytest.mark.parametrize("asked_again", [False, True], ids=["by itself", "as the user asks again"])
async def test_work_that_loses_its_cancellation_is_cancelled_again(
    bus_as, monkeypatch: pytest.MonkeyPatch, asked_again: bool
):
    monkeypatch.setattr("synth.bus.cancellation.AGAIN_S", 60 if asked_again else 0.05)
    ownership, cancellations, lost_one = await owned_job(bus_as), 0, asyncio.Event()

    async def forgetful() -> Event:
        nonlocal cancellations
        while cancellations < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1
                lost_one.set()
        raise asyncio.CancelledError

    await ask(bus_as, ownership, JobCancelRequested())
    async with asyncio.timeout(10):
        running = asyncio.create_task(ownership.run(forgetful(), last_step=lambda: 3))
        await lost_one.wait()
        if asked_again:
            await ask(bus_as, ownership, JobCancelRequested())
        assert await running == JobCancelled(step=3)
    assert cancellations == 2


async def test_work_that_appends_all_the_time_ends_as_soon_as_it_is_cancelled(bus_as):
    """Each cancellation may meet the server's answer, which must not swallow it."""
    ownership, step = await owned_job(bus_as), 0
    publisher = Publisher(ownership.bus)

    async def work() -> None:
        nonlocal step
        while True:
            step += 1
            event = TrainStep(step=step, of=1_000_000, attempt=ownership.fence.attempt, values={})
            await publisher.fenced(event, fence=ownership.fence, id=str(step))

    for k in range(40):
        working = asyncio.create_task(work())
        await asyncio.sleep(k / 10_000)
        working.cancel()
        ended, _ = await asyncio.wait([working], timeout=5)
        assert ended

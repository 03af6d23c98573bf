"""Events of one owner that are ready together are appended together: each once, in order, and all under its claim."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.history.job_log import start_attempt
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.errors import Fenced
from synth.events import TrainStep
from tests.service.bus.test_job_log import verified_job

COUNT = 600
"""More than one batch."""


async def owner(bus_as, worker: str, job: tuple[str, str]) -> tuple[Publisher, Fence]:
    bus = await bus_as("trainer")
    _, fence = await start_attempt(bus, *job, worker=worker)
    assert fence is not None
    return Publisher(bus), fence


def step(k: int) -> TrainStep:
    return TrainStep(step=k, of=COUNT, attempt=1, values={})


async def steps_in_log(bus_as, job: tuple[str, str]) -> list[tuple[int, int]]:
    """The steps of a job, each with its sequence."""
    recorded = await replay(await bus_as("trainer"), ["train.step.{}.{}".format(*job)])
    return [(r.event.step, r.seq) for r in recorded if isinstance(r.event, TrainStep)]


async def test_events_that_are_ready_together_are_appended_in_order_by_few_requests(bus_as):
    job = await verified_job(bus_as)
    bus = await bus_as("trainer")
    _, fence = await start_attempt(bus, *job, worker="a")
    assert fence is not None
    publisher = Publisher(bus)
    answers = bus.nc.stats["in_msgs"]
    seqs = await asyncio.gather(*(publisher.fenced(step(k), fence=fence, id=str(k)) for k in range(COUNT)))
    assert bus.nc.stats["in_msgs"] - answers < 10
    assert await steps_in_log(bus_as, job) == list(zip(range(COUNT), seqs, strict=True))


async def test_events_of_which_some_are_stored_are_all_there_once(bus_as):
    job = await verified_job(bus_as)
    publisher, fence = await owner(bus_as, "a", job)
    first = [await publisher.fenced(step(k), fence=fence, id=str(k)) for k in (3, 5)]
    seqs = await asyncio.gather(*(publisher.fenced(step(k), fence=fence, id=str(k)) for k in range(8)))
    assert [seqs[3], seqs[5]] == first
    assert sorted(await steps_in_log(bus_as, job)) == list(zip(range(8), seqs, strict=True))


async def test_a_replaced_owner_appends_none_of_them(bus_as):
    job = await verified_job(bus_as)
    publisher, fence = await owner(bus_as, "a", job)
    await owner(bus_as, "b", job)
    appends = (publisher.fenced(step(k), fence=fence, id=str(k)) for k in range(20))
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert all(isinstance(result, Fenced) for result in results)
    assert await steps_in_log(bus_as, job) == []


@pytest.mark.parametrize("turns", range(4))
async def test_the_others_are_appended_once_when_the_one_that_sends_them_is_cancelled(bus_as, turns: int):
    """turns: of the event loop before the cancellation: in the first the batch is not sent, in the last it is."""
    job = await verified_job(bus_as)
    publisher, fence = await owner(bus_as, "a", job)
    appends = [asyncio.create_task(publisher.fenced(step(k), fence=fence, id=str(k))) for k in range(20)]
    # The first is alone, and the second sends the others.
    await appends[0]
    for _ in range(turns):
        await asyncio.sleep(0)
    appends[1].cancel()
    results = await asyncio.gather(*appends[2:])
    logged = dict(await steps_in_log(bus_as, job))
    assert [logged[k] for k in range(2, 20)] == results
    assert not fence.waiting

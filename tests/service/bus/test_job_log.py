"""A job's log: one winner per decision, and no commit by an attempt that has been replaced."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.history.job_log import append_as_owner, append_decided, read_job, start_attempt
from synth.bus.publish import Publisher, enqueue
from synth.bus.replay import follow, replay
from synth.errors import Conflict, Fenced, Permanent
from synth.events import JobCreated, JobSucceeded, JobValidated, JobVerified, ModelRef, TrainStep
from synth.ids import new_job_id, new_org_id
from synth.jobs.lifecycle import State
from synth.work import Task


async def verified_job(bus_as) -> tuple[str, str]:
    org, job = new_org_id(), new_job_id()
    created = JobCreated(config="", config_name="x.toml", body_sha256="0")
    steps = [
        ("gateway", created),
        ("validator", JobValidated(job={}, origins={}, warnings=[])),
        ("verifier", JobVerified(source=ModelRef(id="m"))),
    ]
    for service, event in steps:
        await append_decided(await bus_as(service), org, job, lambda _, e=event: e)
    return org, job


async def test_a_job_is_what_its_facts_say(bus_as):
    org, job = await verified_job(bus_as)
    history = await read_job(await bus_as("gateway"), org, job)
    assert history.state is State.VERIFIED
    assert [f.type for f in history.facts] == ["job.created", "job.validated", "job.verified"]
    assert history.need(JobVerified).source.id == "m"


async def test_facts_that_cannot_follow_each_other_are_no_log_of_a_job(bus_as):
    org, job = new_org_id(), new_job_id()
    stolen = await bus_as("trainer")
    ack = await stolen.js.publish(f"job.started.{org}.{job}", b'{"attempt":1,"worker":"thief"}')
    with pytest.raises(Permanent, match=rf"{job} is damaged at {ack.seq}: job\.started cannot follow state none"):
        await read_job(await bus_as("gateway"), org, job)


async def test_a_zombie_attempt_cannot_commit(bus_as):
    org, job = await verified_job(bus_as)
    bus = await bus_as("trainer")
    _, zombie = await start_attempt(bus, org, job, worker="a")
    _, owner = await start_attempt(bus, org, job, worker="b")
    assert zombie is not None
    assert owner is not None
    publisher = Publisher(bus)
    step = TrainStep(step=1, of=2, attempt=1, values={})
    with pytest.raises(Fenced):
        await publisher.fenced(step, fence=zombie, id="1")
    with pytest.raises(Fenced):
        await append_as_owner(bus, zombie, lambda _: JobSucceeded(steps=1))
    await publisher.fenced(step, fence=owner, id="1")
    assert (await read_job(bus, org, job)).state is State.STARTED


async def test_the_same_publish_twice_is_one_event(bus_as):
    org, job = await verified_job(bus_as)
    bus = await bus_as("trainer")
    _, fence = await start_attempt(bus, org, job, worker="a")
    assert fence is not None
    step = TrainStep(step=1, of=2, attempt=1, values={"loss": 1.0})
    publisher = Publisher(bus)
    first = await publisher.fenced(step, fence=fence, id="1")
    assert await publisher.fenced(step, fence=fence, id="1") == first
    assert len(await replay(bus, [f"train.step.{org}.{job}"])) == 1


async def test_twenty_racers_for_one_decision_have_one_winner(bus_as):
    org, job = await verified_job(bus_as)
    buses = [await bus_as("trainer") for _ in range(4)]
    publishers = [Publisher(bus) for bus in buses]
    last = (await read_job(buses[0], org, job)).last_seq
    from synth.events import JobStarted

    async def race(i: int) -> bool:
        try:
            await publishers[i % 4].lifecycle(
                JobStarted(attempt=1, worker=str(i)), org=org, key=job, id=str(i), after=last
            )
        except Conflict:
            return False
        return True

    assert sum(await asyncio.gather(*(race(i) for i in range(20)))) == 1


async def test_only_its_publisher_may_publish_an_event(bus_as):
    bus = await bus_as("gateway")
    with pytest.raises(Permanent, match="published by trainer"):
        await Publisher(bus).fenced(TrainStep(step=1, of=1, attempt=1, values={}), fence=None, id="1")  # type: ignore[arg-type]


async def test_a_task_is_queued_once(bus_as):
    task = Task(kind="collect", pool="nobody", org=new_org_id(), job_id=new_job_id())
    bus = await bus_as("verifier")
    assert await enqueue(bus, task)
    assert not await enqueue(bus, task)


async def test_a_follower_sees_the_past_and_then_the_present_in_one_order(bus_as):
    org, job = await verified_job(bus_as)
    trainer = await bus_as("trainer")
    seen: list[int] = []
    got_all = asyncio.Event()

    async def watch() -> None:
        async for event in follow(await bus_as("gateway"), [f"*.*.{org}.{job}"]):
            seen.append(event.seq)
            if event.type == "train.step" and event.event.step == 20:  # type: ignore[attr-defined]
                got_all.set()

    watcher = asyncio.create_task(watch())
    _, fence = await start_attempt(trainer, org, job, worker="a")
    assert fence is not None
    for k in range(1, 21):
        await Publisher(trainer).fenced(TrainStep(step=k, of=20, attempt=1, values={}), fence=fence, id=str(k))
    await asyncio.wait_for(got_all.wait(), 10)
    watcher.cancel()
    assert len(seen) == 24
    assert seen == sorted(set(seen))

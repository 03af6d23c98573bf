"""Work that a newer version made: an older process leaves it, says so, and a newer one does it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest
from structlog.testing import capture_logs

from synth.bus.connection import Connection
from synth.bus.history.job_log import read_job
from synth.bus.replay import follow, replay
from synth.bus.server.provision import drift, provision
from synth.bus.server.topology import topology
from synth.erasure.newer_events import drop_newer_events, find_newer_events
from synth.errors import NewerVersion, Permanent
from synth.events.catalogue import CATALOGUE
from synth.work import Task
from tests.service.bus.own_server import OwnServer, declare, declared, is_queued, left_in
from tests.service.bus.owners import Owner, a_task, finish, gone, queue, working
from tests.service.bus.test_delivery import QUEUE, Handler, settled, submit, validator, well


async def append_raw(bus: Connection, subject: str, body: bytes, *, schema: int = 2) -> None:
    await bus.js.publish(subject, body, headers={"Synth-Schema": str(schema)})


CREATED = b'{"config":"c","config_name":"newer","body_sha256":"0"}'


async def until(bus: Connection, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await bus.nc.flush()


async def test_an_event_of_a_newer_schema_is_left_to_a_newer_process_and_is_no_dead_letter(own: OwnServer, monkeypatch):
    bus = await own.provision()
    await declare(bus, job_created=3)
    old, new = Handler(well, enough=1), Handler(well, enough=2)
    async with validator(own, old):
        older = own.opened[-1]
        await append_raw(bus, "job.created.org_a.job_1", CREATED, schema=3)
        await until(bus, lambda: older.newer.problem() is not None)
        await submit(own, "later")
        assert "job.created at 1 (schema 3)" in str(older.newer.problem())
        assert await left_in(bus, *QUEUE) != (0, 0)
        # What the next release is: the same code with a newer schema of this event.
        newer = msgspec.structs.replace(CATALOGUE["job.created"], version=3)
        monkeypatch.setitem(CATALOGUE, "job.created", newer)
        async with validator(own, new):
            await asyncio.wait_for(new.enough.wait(), 20)
            await settled(own)
    assert old.seen == []
    assert sorted(new.names) == ["later", "newer"]
    assert (await bus.js.stream_info("DEAD")).state.messages == 0


@pytest.mark.parametrize("subject", ["job.created.org_a.job_1", "job.created.org_a.job_1.more"])
async def test_what_says_that_it_is_newer_and_was_never_declared_is_a_dead_letter(own: OwnServer, subject: str):
    bus = await own.provision()
    handler = Handler(well, enough=1)
    async with validator(own, handler):
        for schema in (3, 999):
            await append_raw(bus, subject, CREATED, schema=schema)
        await submit(own, "later")
        await asyncio.wait_for(handler.enough.wait(), 20)
        await settled(own)
        assert own.opened[-1].newer.problem() is None
    assert handler.names == ["later"]
    assert (await bus.js.stream_info("DEAD")).state.messages == 2
    found = await find_newer_events(bus)
    assert [(event.schema, event.declared) for event in found] == [(3, False), (999, False)]


async def test_what_was_declared_after_a_process_started_is_believed_from_then_on(own: OwnServer):
    bus = await own.provision()
    subject = "rollout.batch.org_a.job_1"
    reader = await own.connect("gateway")
    await append_raw(bus, subject, b'{"iteration":1}')
    assert await replay(reader, [subject])
    await declare(bus, rollout_batch=2)
    assert (await declared(bus))["rollout.batch"] == {1: 0, 2: 1}
    # It was written before.
    for one in (reader, await own.connect("gateway")):
        assert await replay(one, [subject])
    await append_raw(bus, subject, b'{"iteration":2}')
    with pytest.raises(NewerVersion, match=r"rollout\.batch at 2"):
        await replay(reader, [subject], after=1)
    # Nobody had declared a schema in between.
    await declare(bus, rollout_batch=9)
    await append_raw(bus, subject, b'{"iteration":3}', schema=5)
    assert await replay(reader, [subject], after=2)


async def test_what_was_declared_is_read_again_where_another_log_has_come_into_its_place(own: OwnServer):
    bus = await own.provision()
    reader = await own.connect("gateway")
    subject = "rollout.batch.org_a.job_1"
    for _ in range(5):
        await append_raw(bus, subject, b'{"iteration":1}')
    assert len(await replay(reader, [subject])) == 5
    await bus.js.delete_stream("EVENTS")
    await provision(bus.js, topology())
    await declare(bus, rollout_batch=2)
    await append_raw(bus, subject, b'{"iteration":1}')
    with pytest.raises(NewerVersion, match=r"rollout\.batch at 1"):
        await replay(reader, [subject])


async def test_a_version_before_takes_nothing_back_that_was_declared(own: OwnServer):
    bus = await own.provision()
    await declare(bus, job_created=3, job_teleported=1)
    await provision(bus.js, topology())
    assert await drift(bus.js, topology()) == []
    found = await declared(bus)
    assert [found[type_] for type_ in ("job.created", "job.teleported", "job.started")] == [
        {2: 0, 3: 0},
        {1: 0},
        {1: 0},
    ]


async def test_a_service_does_not_start_before_its_schemas_are_declared(own: OwnServer, monkeypatch):
    bus = await own.provision()
    trainer, stop = await own.connect("trainer"), asyncio.Event()
    await first(trainer.schemas.wait_until_written_ones_are_declared(stop))
    newer = {"train.step": 2, "job.created": 7}
    for type_, schema in newer.items():
        monkeypatch.setitem(CATALOGUE, type_, msgspec.structs.replace(CATALOGUE[type_], version=schema))
    assert any("synth.schema.train.step" in line for line in await drift(bus.js, topology()))
    with capture_logs() as lines:
        waiting = asyncio.create_task(trainer.schemas.wait_until_written_ones_are_declared(stop))
        await until(bus, lambda: bool(lines))
    assert "schemas of job.created 7, train.step 2): run its `synthd bus init`" in lines[0]["reason"]
    assert not waiting.done()
    await provision(bus.js, topology())
    await first(waiting)


async def test_a_start_waits_for_a_log_and_ends_at_the_stop(own: OwnServer):
    trainer, stop = await own.connect("trainer"), asyncio.Event()
    with capture_logs() as lines:
        waiting = asyncio.create_task(trainer.schemas.wait_until_written_ones_are_declared(stop))
        await until(trainer, lambda: bool(lines))
    assert "there is no log yet: run `synthd bus init`" in lines[0]["reason"]
    stop.set()
    await first(waiting)


async def test_no_service_declares_a_schema(own: OwnServer):
    bus = await own.provision()
    gateway = await own.connect("gateway")
    log = (await gateway.js.stream_info("EVENTS")).config
    with pytest.raises(TimeoutError):
        await gateway.js.update_stream(replace(log, metadata={"synth.schema.job.created": "3@0"}))
    assert (await declared(bus))["job.created"] == {2: 0}


async def test_a_queue_that_a_newer_event_has_stopped_goes_on_once_it_is_dropped(own: OwnServer):
    bus = await own.provision()
    await declare(bus, job_created=999)
    async with validator(own, Handler(well, enough=1)):
        older = own.opened[-1]
        await append_raw(bus, "job.created.org_a.job_1", CREATED, schema=999)
        await until(bus, lambda: older.newer.problem() is not None)
    await submit(own, "later")
    [found] = await find_newer_events(bus)
    assert (found.seq, found.subject, found.schema) == (1, "job.created.org_a.job_1", 999)
    assert await drop_newer_events(bus, [found, found]) == 1
    again = Handler(well, enough=1)
    async with validator(own, again):
        await asyncio.wait_for(again.enough.wait(), 20)
        await settled(own)
        assert own.opened[-1].newer.problem() is None
    assert again.names == ["later"]


async def test_a_task_whose_log_has_a_newer_fact_goes_back_and_its_queue_is_left_alone(own: OwnServer):
    bus = await own.provision()
    await declare(bus, job_teleported=1)
    await append_raw(bus, "job.teleported.org_a.job_1", b'{"to":"mars"}', schema=1)

    async def read(task: Task, lease) -> None:
        await read_job(bus, task.org, task.job_id)

    older = Owner(read)
    async with working(own, older, capacity=2) as (worker, _):
        await queue(own, 1)
        await older.has_begun(1)
        await until(bus, lambda: own.opened[-2].newer.problem() is not None)
        await until(bus, lambda: worker.running == 0)
        await queue(own, 2)
        assert await is_queued(bus, a_task(1).subject)
        newer = Owner(finish)
        async with working(own, newer):
            await newer.has_begun(2)
            await gone(own, a_task(2))
    assert older.begun == ["job_1"]
    assert sorted(newer.begun) == ["job_1", "job_2"]


async def first(events: Awaitable) -> object:
    async with asyncio.timeout(10):
        return await events


@pytest.mark.parametrize(
    ("body", "schema", "error"),
    [(b'{"iteration":1}', 2, NewerVersion), (b"\xff no JSON", 1, Permanent)],
)
async def test_who_acts_on_what_it_follows_is_told_of_what_it_cannot_read(own: OwnServer, body, schema, error):
    bus = await own.provision()
    await declare(bus, rollout_batch=2)
    await append_raw(bus, "rollout.batch.org_a.job_1", body, schema=schema)
    subjects = ["rollout.batch.org_a.job_1"]
    with pytest.raises(error, match=r"rollout\.batch at 1"):
        await first(anext(follow(bus, subjects)))
    with pytest.raises(error, match=r"rollout\.batch at 1"):
        await replay(bus, subjects, whole=True)
    # Who only shows it sees that it is there.
    assert (await first(anext(follow(bus, subjects, unreadable_too=True)))).seq == 1  # type: ignore[attr-defined]

"""A task that the bus has lost is queued again from its job's log, and only such a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from synth.bus.connection import Connection
from synth.bus.history.job_log import append_decided
from synth.bus.publish import Publisher, enqueue
from synth.bus.server.topology import WORK
from synth.bus.server.work_queue import drop_unreadable_work
from synth.bus.tasks.pull import pull
from synth.events import JobCreated, JobValidated, JobVerified, JobWithdrawn, ModelRef, PolicyLoaded
from synth.ids import new_job_id, new_org_id
from synth.models import Registry
from synth.validator.validate import validate
from synth.verifier.settings import VerifierSettings
from synth.verifier.tasks.lost import LostTasks
from tests.service.gateway.own_log.conftest import bus_admin, bus_as, settings_of
from tests.service.jobs import RL, SFT, create, make_model_dir
from tests.service.own_bus import Bus

__all__ = ["bus_admin", "bus_as", "settings_of"]

BusAs = Callable[[str], Awaitable[Connection]]


@pytest.fixture
def own_bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    bus.start()
    yield bus
    bus.stop()


async def verified(bus_as: BusAs, folder: Path, config: str) -> tuple[str, str]:
    """A job whose verifier died before it queued a task."""
    org, job = new_org_id(), new_job_id()
    await create(await bus_as("gateway"), org, job, config)
    created = JobCreated(config=config, config_name="job.toml", body_sha256="0")
    fact = validate(created, Registry(make_model_dir(folder)))
    assert isinstance(fact, JobValidated)
    await append_decided(await bus_as("validator"), org, job, lambda _: fact)
    source = JobVerified(source=ModelRef(id="tiny", path="tiny"))
    await append_decided(await bus_as("verifier"), org, job, lambda _: source)
    return org, job


def lost_tasks(bus: Connection) -> LostTasks:
    return LostTasks(bus, VerifierSettings(serve_replicas=2))


async def test_each_task_of_a_live_job_is_queued_again_once(bus_as, tmp_path):
    org, job = await verified(bus_as, tmp_path, RL)
    lost = lost_tasks(await bus_as("verifier"))
    assert [(task.kind, task.index) for task in await lost.queue_again()] == [
        ("collect", None),
        ("serve", 0),
        ("serve", 1),
    ]
    assert await lost.queue_again() == []
    loaded = PolicyLoaded(version=0, replica="i", index=0, seconds=1.0, proven=0)
    await Publisher(await bus_as("inference")).once(loaded, org=org, key=job, id="loaded")
    assert [task.subject for task in await lost.queue_again()] == [f"work.train.default.{org}.{job}.0"]
    assert await lost_tasks(await bus_as("verifier")).queue_again() == []


async def test_a_task_in_another_pool_is_not_lost(bus_as, tmp_path):
    await verified(bus_as, tmp_path, SFT)
    verifier = await bus_as("verifier")
    (train,) = await lost_tasks(verifier).queue_again()
    elsewhere = LostTasks(verifier, VerifierSettings(pool="big"))
    assert await elsewhere.queue_again() == []
    trainer = await bus_as("trainer")
    (msg,) = await pull(trainer, "train-default", batch=5)
    assert msg.subject == train.subject


async def test_a_job_that_this_version_cannot_read_keeps_no_other_from_its_task(bus_as, tmp_path):
    org, job = new_org_id(), new_job_id()
    await create(await bus_as("gateway"), org, job, SFT)
    strange = JobValidated(job={"kind": "of another version"}, origins={}, warnings=[])
    await append_decided(await bus_as("validator"), org, job, lambda _: strange)
    source = JobVerified(source=ModelRef(id="tiny", path="tiny"))
    await append_decided(await bus_as("verifier"), org, job, lambda _: source)
    _, readable = await verified(bus_as, tmp_path, SFT)
    assert [task.job_id for task in await lost_tasks(await bus_as("verifier")).queue_again()] == [readable]


async def test_a_job_that_is_over_has_no_task(bus_as, tmp_path):
    org, job = await verified(bus_as, tmp_path, SFT)
    await append_decided(await bus_as("gateway"), org, job, lambda _: JobWithdrawn(requested_by="k"))
    assert await lost_tasks(await bus_as("verifier")).queue_again() == []


async def test_a_damaged_task_is_noticed_removed_and_queued_again_and_the_others_stay(own_bus, bus_as, tmp_path):
    jobs = [await verified(bus_as, tmp_path, SFT) for _ in range(3)]
    assert len(await lost_tasks(await bus_as("verifier")).queue_again()) == len(jobs)
    own_bus.stop()
    (block,) = own_bus.config.store.rglob(f"{WORK}/msgs/*.blk")
    body = bytearray(block.read_bytes())
    body[body.rindex(jobs[1][1].encode()) + 5] ^= 1
    block.write_bytes(body)
    own_bus.start()
    verifier, admin = await bus_as("verifier"), await bus_as("bus")
    lost = lost_tasks(verifier)
    assert await lost.queue_again() == []
    assert jobs[1][1] in (lost.check() or "")
    assert await drop_unreadable_work(admin.js) == [f"work.train.default.{jobs[1][0]}.{jobs[1][1]}.0"]
    assert await drop_unreadable_work(admin.js) == []
    assert [task.job_id for task in await lost.queue_again()] == [jobs[1][1]]
    assert lost.check() is None
    trainer = await bus_as("trainer")
    assert {msg.subject.split(".")[4] for msg in await pull(trainer, "train-default", batch=5)} == {
        job for _, job in jobs
    }


async def test_a_retry_of_an_operator_outlives_the_removal_of_a_damaged_task(own_bus, bus_as, tmp_path):
    org, job = await verified(bus_as, tmp_path, SFT)
    (train,) = await lost_tasks(await bus_as("verifier")).queue_again()
    admin = await bus_as("bus")
    retry = f"work.retry.files-file-uploaded.{org}.file_1.7"
    await admin.js.publish(retry, b"{}", stream=WORK)
    own_bus.stop()
    (block,) = own_bus.config.store.rglob(f"{WORK}/msgs/*.blk")
    body = bytearray(block.read_bytes())
    body[body.rindex(job.encode()) + 5] ^= 1
    block.write_bytes(body)
    own_bus.start()
    admin = await bus_as("bus")
    assert await drop_unreadable_work(admin.js) == [train.subject]
    assert (await admin.js.get_last_msg(WORK, retry)).data == b"{}"
    assert await enqueue(await bus_as("verifier"), train)

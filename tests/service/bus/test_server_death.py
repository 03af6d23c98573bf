"""`kill -9` of the bus itself: what was acknowledged stays, what was not is published once, readers go on."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.history.job_log import append_decided, read_job
from synth.bus.publish import Publisher, enqueue
from synth.bus.replay import follow, replay
from synth.errors import Conflict
from synth.events import BlobRef, FileUploaded, JobCreated
from synth.work import Task

UPLOAD = FileUploaded(name="f", purpose="fine-tune", blob=BlobRef(uri="blob://f", size=1, sha256="0"))
CREATED = JobCreated(config="", config_name="j", body_sha256="0")


async def test_a_publish_that_meets_a_dead_server_is_one_event(own):
    await own.provision()
    gateway = await own.connect("gateway")
    own.kill()
    publishing = asyncio.create_task(Publisher(gateway).once(UPLOAD, org="org_a", key="file_a", id="1"))
    own.start()
    seq = await asyncio.wait_for(publishing, 20)
    own.kill()
    own.start()
    # The retry of a publish whose acknowledgement was lost: the server remembers the id over its death.
    assert await asyncio.wait_for(Publisher(gateway).once(UPLOAD, org="org_a", key="file_a", id="1"), 20) == seq
    assert [e.seq for e in await replay(gateway, ["file.*.org_a.file_a"])] == [seq]


async def test_a_compare_and_set_that_is_retried_over_a_restart_is_ours_and_no_conflict(own):
    await own.provision()
    gateway = await own.connect("gateway")
    publisher = Publisher(gateway)
    seq = await publisher.lifecycle(CREATED, org="org_a", key="job_a", id="mine", after=0)
    own.kill()
    own.start()
    again = publisher.lifecycle(CREATED, org="org_a", key="job_a", id="mine", after=0)
    assert await asyncio.wait_for(again, 20) == seq
    with pytest.raises(Conflict):
        await publisher.lifecycle(CREATED, org="org_a", key="job_a", id="another", after=0)


async def test_a_task_queued_over_a_restart_is_queued_once(own):
    await own.provision()
    verifier = await own.connect("verifier")
    task = Task(kind="collect", pool="nobody", org="org_a", job_id="job_a")
    own.kill()
    queueing = asyncio.create_task(enqueue(verifier, task))
    own.start()
    await asyncio.wait_for(queueing, 20)
    assert not await enqueue(verifier, task)


async def test_followers_and_replays_see_every_event_once_and_in_order_over_three_deaths(own):
    await own.provision()
    gateway, reader = await own.connect("gateway"), await own.connect("trainer")
    total, deaths = 400, (80, 160, 240)
    seen: list[str] = []
    complete = asyncio.Event()

    async def watch() -> None:
        async for event in follow(reader, ["file.uploaded.org_a.*"]):
            seen.append(event.key)
            if len(seen) == total:
                complete.set()

    watcher = asyncio.create_task(watch())
    publisher = Publisher(gateway)
    for n in range(total):
        if n in deaths:
            own.kill()
            own.start()
        await publisher.once(UPLOAD, org="org_a", key=f"file_{n}", id="1")
    await asyncio.wait_for(complete.wait(), 30)
    watcher.cancel()
    wanted = [f"file_{n}" for n in range(total)]
    assert seen == wanted
    own.kill()
    own.start()
    assert [e.key for e in await replay(reader, ["file.uploaded.org_a.*"])] == wanted


async def test_a_decision_is_made_on_the_log_as_it_is_after_a_restart(own):
    await own.provision()
    gateway = await own.connect("gateway")
    await append_decided(gateway, "org_a", "job_a", lambda _: CREATED)
    own.kill()
    own.start()
    history, seq = await asyncio.wait_for(append_decided(gateway, "org_a", "job_a", lambda h: None), 20)
    assert (seq, [f.type for f in history.facts]) == (None, ["job.created"])
    assert (await read_job(gateway, "org_a", "job_b")).state is None

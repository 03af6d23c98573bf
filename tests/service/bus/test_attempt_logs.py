"""What a service logs about a job is stored with the job."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog

from synth.blobs import BlobStore
from synth.bus.replay import replay
from synth.bus.tasks.attempt_logs import AttemptLogs, LastLines, without_digest
from synth.bus.tasks.lease import Lease
from synth.errors import Transient
from synth.events import TrainLogged
from synth.runtime import logs
from synth.work import Task
from tests.service.bus.owners import Owner, a_task, a_worker, gone, queue

FOLDER = "jobs/job_1/logs"


@pytest.fixture(autouse=True)
def lines_as_services_write_them():
    structlog.configure(processors=logs.PROCESSORS)
    yield
    structlog.reset_defaults()


async def run(own, act, blobs: BlobStore, *, every_s: float = 60, until=None):
    """Run the task of job_1 on a worker that stores its logs in `blobs`."""
    await own.provision()
    bus = await own.connect("trainer")
    owner = Owner(act)
    stored = AttemptLogs(bus, blobs, max_bytes=10_000, every_s=every_s)
    stop = asyncio.Event()
    serving = asyncio.create_task(a_worker(bus, owner, attempt_logs=stored).serve(stop))
    await queue(own, 1)
    try:
        async with asyncio.timeout(20):
            await (until() if until else gone(own, a_task(1)))
    finally:
        stop.set()
        await asyncio.wait_for(serving, 15)
    return owner


async def read(blobs: BlobStore) -> list[list[dict]]:
    """The lines of each stored log of job_1."""
    keys = [key async for key, _, _ in blobs.below(FOLDER)]
    texts: list[bytes] = []
    for key in sorted(keys):
        text, is_whole = without_digest(await blobs.find_bytes(key) or b"")
        assert is_whole
        texts.append(text)
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


async def has_stored(blobs: BlobStore, text: str) -> None:
    while text not in str(await read(blobs)):
        continue


async def test_the_log_of_a_task_is_stored_and_announced_when_it_is_done(own, tmp_path):
    blobs, log = BlobStore.open(f"file:{tmp_path}"), logs.get("test")

    async def act(task: Task, lease: Lease) -> None:
        log.info("before")
        await asyncio.to_thread(lambda: log.warning("in a thread", key="Bearer abc.def"))
        structlog.get_logger().info("of another job", job="job_2")

    await run(own, act, blobs)
    [lines] = await read(blobs)
    assert [line["event"] for line in lines] == ["task taken", "before", "in a thread", "task done"]
    assert {line["job"] for line in lines} == {"job_1"}
    assert lines[2]["key"] == "Bearer [secret]"
    [recorded] = await replay(await own.connect("trainer"), ["train.logged.org_a.job_1"])
    assert isinstance(recorded.event, TrainLogged)
    assert recorded.event.bytes == recorded.event.blob.size
    assert len(await blobs.get_bytes(recorded.event.blob)) == recorded.event.bytes


async def test_a_task_that_is_tried_again_has_one_log_and_one_announcement(own, tmp_path):
    blobs, tries = BlobStore.open(f"file:{tmp_path}"), 0

    async def act(task: Task, lease: Lease) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Transient("not yet", delay=0.1)
        if tries == 2:
            raise ValueError("a bug")

    await run(own, act, blobs, until=lambda: has_stored(blobs, "Traceback"))
    [lines] = await read(blobs)
    events = [line["event"] for line in lines]
    assert events == ["task taken", "task handed back", "task taken", "task failed, will be retried"]
    assert "ValueError: a bug" in lines[-1]["exception"]
    assert await replay(await own.connect("trainer"), ["train.logged.>"]) == []


async def test_a_running_task_is_stored_at_intervals(own, tmp_path):
    blobs = BlobStore.open(f"file:{tmp_path}")

    async def act(task: Task, lease: Lease) -> None:
        logs.get("test").info("begun")
        lease.progress("held", deadline=60)
        await asyncio.Event().wait()

    await run(own, act, blobs, every_s=0.1, until=lambda: has_stored(blobs, "begun"))


async def test_a_store_that_fails_costs_no_attempt(own, tmp_path):
    blobs = BlobStore.open(f"file:{tmp_path / 'blobs'}")

    async def act(task: Task, lease: Lease) -> None:
        (tmp_path / "blobs").rmdir()
        (tmp_path / "blobs").write_text("a file")

    owner = await run(own, act, blobs)
    assert owner.begun == ["job_1"]


def test_a_log_keeps_its_last_lines_within_its_bytes():
    lines = LastLines(100)
    for n in range(50):
        lines.add(f"line {n:03}")
    kept = lines.text().splitlines()
    assert (len(lines.text()), kept[-1], len(kept), lines.total) == (99, b"line 049", 11, 50)
    lines.add("x" * 500)
    assert lines.text() == b"x" * 99 + b"\n"


@pytest.mark.parametrize(
    ("line", "stored"),
    [
        ("key synth_live_abc123 used", "key synth_live_… used"),
        ("Authorization: Bearer a.b-c", "Authorization: Bearer [secret]"),
        ("https://user:pass@host/x", "https://[secret]@host/x"),
        ("sk-abcdefgh12345 and hf_abcdefghijk", "[secret] and [secret]"),
        ("mask-abcdefgh a task-12345678", "mask-abcdefgh a task-12345678"),
    ],
)
def test_a_secret_is_not_stored(line, stored):
    lines = LastLines(1000)
    lines.add(line)
    assert lines.text().decode() == f"{stored}\n"

"""What large requests cost: in a worker process, within limits, by turns of organisations."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from synth.errors import Transient
from synth.runtime.off_loop import INLINE_BYTES, OffLoop, TooMuchWork, WorkerSettings
from tests.loop_gaps import LoopGaps

LARGE = INLINE_BYTES + 1


def decoded_length(body: bytes) -> int:
    return len(msgspec.json.decode(body))


def end_at_once() -> None:
    os._exit(3)


def write_and_wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def process_id() -> int:
    return os.getpid()


@contextmanager
def elsewhere(folder: Path) -> Iterator[Path]:
    """A file into which a worker writes its process id, and whose process has ended afterwards."""
    path = folder / "pid"
    yield path
    pid = int(path.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def written(path: Path) -> None:
    async with asyncio.timeout(60):
        while not (path.exists() and path.read_text()):  # noqa: ASYNC110 -- another process writes it
            await asyncio.sleep(0.01)


async def test_only_what_is_large_leaves_the_process():
    off_loop = OffLoop()
    assert await off_loop.process(process_id, org="a", size=INLINE_BYTES, task="count") == os.getpid()
    assert await off_loop.process(process_id, org="a", size=LARGE, task="count") != os.getpid()


async def test_a_worker_that_dies_fails_its_own_request_alone():
    off_loop = OffLoop()
    other = asyncio.create_task(off_loop.process(decoded_length, b"[1,2]", org="b", size=LARGE, task="decode it"))
    with pytest.raises(Transient, match="the process that was to decode it ended"):
        await off_loop.process(end_at_once, org="a", size=LARGE, task="decode it")
    assert await other == 2


async def test_a_request_that_takes_too_long_names_the_setting(tmp_path: Path):
    off_loop = OffLoop(WorkerSettings(worker_timeout_s=3))
    with elsewhere(tmp_path) as path, pytest.raises(TooMuchWork, match=r"more than 3 s.*SYNTH_WORKER_TIMEOUT_S"):
        await off_loop.process(write_and_wait, str(path), org="a", size=LARGE, task="decode it")


async def test_a_request_that_takes_too_much_memory_names_the_setting():
    off_loop = OffLoop(WorkerSettings(worker_memory_bytes=256 << 20))
    body = b"[" + b",".join([b"[]"] * (4 << 20)) + b"]"
    with pytest.raises(TooMuchWork, match="SYNTH_WORKER_MEMORY_BYTES"):
        await off_loop.process(decoded_length, body, org="a", size=len(body), task="decode it")


async def test_a_caller_that_leaves_ends_its_worker(tmp_path: Path):
    off_loop = OffLoop()
    with elsewhere(tmp_path) as path:
        running = asyncio.create_task(
            off_loop.process(write_and_wait, str(path), org="a", size=LARGE, task="decode it")
        )
        await written(path)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_one_organisation_cannot_keep_the_others_out(tmp_path: Path):
    off_loop = OffLoop(WorkerSettings(worker_processes=1))
    path = tmp_path / "pid"
    hostile = [
        asyncio.create_task(off_loop.process(write_and_wait, str(path), org="a", size=LARGE, task="decode it"))
        for _ in range(3)
    ]
    await written(path)
    assert await off_loop.process(decoded_length, b"[1]", org="b", size=LARGE, task="decode it") == 1
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)


async def test_threads_that_one_organisation_holds_keep_no_other_out():
    off_loop, end = OffLoop(WorkerSettings(worker_threads=2)), threading.Event()
    hostile = [asyncio.create_task(off_loop.thread(end.wait, 60, org="a", size=LARGE)) for _ in range(20)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            assert await off_loop.thread(decoded_length, b"[1]", org="b", size=LARGE) == 1
            assert await off_loop.thread(decoded_length, b"[1]", org="a", size=INLINE_BYTES) == 1
        assert not any(task.done() for task in hostile)
    finally:
        end.set()
        assert await asyncio.gather(*hostile) == [True] * 20


async def test_the_monitor_sees_a_call_that_holds_the_gil():
    body = b"[" + b",".join([b"[]"] * (1 << 22)) + b"]"
    async with LoopGaps() as gaps:
        await asyncio.to_thread(decoded_length, body)
    assert gaps.own_s > 0.05

"""Where training processes come from: every job gets a fork of a process that has imported what it needs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from synth.runtime.child_process import end_child
from synth.trainer.learner import fork_server
from synth.trainer.owner.processes.learner_process import LearnerPool, LearnerProcess, LearnerStopped
from synth.trainer.owner.processes.training_forks import TrainingFork
from synth.trainer.protocol import Failed, Start, Stored

DEADLINE_S = 60
#: A message holds the figures of every step since the last checkpoint.
UNLIMITED_LINE = 1 << 62


@pytest.fixture(scope="module")
async def learners() -> AsyncIterator[LearnerPool]:
    """The pool of one service."""
    pool = LearnerPool()
    keeping = asyncio.create_task(pool.keep_warm())
    yield pool
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    # The kernel takes a killed process out of the list a moment later.
    _, left = psutil.wait_procs(learner_processes(), timeout=DEADLINE_S)
    assert left == []


def learner_processes() -> list[psutil.Process]:
    """Return the fork server and the training processes."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "synth.trainer.learner" in " ".join(child.cmdline())]


async def has_started(learner: LearnerProcess) -> None:
    """Wait until the server has forked the process."""
    async with asyncio.timeout(DEADLINE_S):
        while learner.pid == 0:  # noqa: ASYNC110 - nobody else is told
            await asyncio.sleep(0)


def bad_start(folder: Path) -> Start:
    return Start(job={"kind": "rl"}, machine={}, model_dir=str(folder), work_dir=str(folder))


async def says_what_is_wrong(learner: LearnerProcess, folder: Path) -> None:
    """That it listens: it answers a job that nobody could train."""
    await learner.start_job(bad_start(folder), progress=lambda stage: None)
    assert isinstance(await learner.recv(silence=lambda stage: DEADLINE_S), Failed)


async def test_each_job_gets_a_process_of_its_own_without_the_imports(learners: LearnerPool, tmp_path: Path) -> None:
    pids: list[int] = []
    for _ in range(2):
        async with learners.acquire() as learner:
            await has_started(learner)
            pids.append(learner.pid)
            assert psutil.Process(learner.pid).ppid() == learners.server_pid
            await says_what_is_wrong(learner, tmp_path)
        assert not psutil.pid_exists(learner.pid)
    assert len({*pids}) == 2


async def test_a_fork_server_that_was_killed_ends_its_processes_and_is_replaced(
    learners: LearnerPool, tmp_path: Path
) -> None:
    async with learners.acquire() as learner:
        await says_what_is_wrong(learner, tmp_path)
    killed = learners.server_pid
    assert killed is not None
    async with learners.acquire() as learner:
        await has_started(learner)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(LearnerStopped):
            await learner.recv(silence=lambda stage: DEADLINE_S)
        await learner.wait_stopped()
    async with learners.acquire() as learner:
        await says_what_is_wrong(learner, tmp_path)
    assert learners.server_pid not in (None, killed)


async def test_a_process_that_a_dead_server_cannot_start_counts_as_ended() -> None:
    """The server may die between the look at it and the request."""
    pool = LearnerPool()
    server = await cast(Any, pool)._ensure_server()
    await server.close()
    process = await TrainingFork.start(server)
    assert await process.wait() == -signal.SIGKILL
    await process.end()


async def test_a_process_that_is_stopped_before_the_server_has_started_it_ends(tmp_path: Path) -> None:
    pool = LearnerPool()
    async with pool.acquire() as learner:
        assert learner.pid == 0
    assert not learner.alive
    keeping = asyncio.create_task(pool.keep_warm())
    await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_process_that_is_killed_at_work_ends_the_attempt(learners: LearnerPool, tmp_path: Path) -> None:
    async with learners.acquire() as learner:
        await has_started(learner)
        os.kill(learner.pid, signal.SIGKILL)
        with pytest.raises(LearnerStopped, match=r"-9"):
            await says_what_is_wrong(learner, tmp_path)


async def test_a_training_process_is_not_given_the_secrets_of_its_service(monkeypatch):
    monkeypatch.setenv("SYNTH_CLUSTER_SECRET", "not-for-children")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-children")
    pool = LearnerPool()
    try:
        async with pool.acquire() as learner:
            await has_started(learner)
            given = [psutil.Process(pid).environ() for pid in (learner.pid, pool.server_pid)]
    finally:
        await cast(Any, pool)._server.close()
    for environment in given:
        assert environment["OMP_NUM_THREADS"] == "1"
        assert "not-for-children" not in environment.values()


def test_a_process_that_cannot_be_forked_is_spawned():
    """As if an import had initialised CUDA: no fork could use it."""
    ends = [os.pipe() for _ in range(3)]
    pid = fork_server._spawn([ends[0][0], ends[1][1], ends[2][1]])
    try:
        os.write(ends[0][1], b"no message\n")
        assert b'"code":"bad_message"' in os.read(ends[1][0], 4096)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    finally:
        for end in ends:
            for fd in end:
                os.close(fd)


class Spawned:
    """A process of ours with the interface of a forked one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    async def end(self) -> None:
        await end_child(self._process)


async def saying(*lines: str) -> LearnerProcess:
    """A process that says these lines, and then nothing for as long as it lives."""
    code = "import sys\nfor line in sys.argv[1:]: print(eval(line), flush=True)\nsys.stdin.read()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *lines),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=UNLIMITED_LINE,
    )
    return LearnerProcess(cast(Any, Spawned(process)))


@pytest.mark.parametrize(("stage", "setting"), [("load", "SYNTH_MODEL_IO_S"), ("train", "SYNTH_CHILD_SILENCE_S")])
async def test_a_process_that_says_nothing_more_is_given_the_time_of_its_stage(stage: str, setting: str) -> None:
    process = await saying(f"""'{{"event": "progress", "stage": "{stage}", "done": 0, "of": 1}}'""")
    try:
        with pytest.raises(LearnerStopped, match=rf"nothing for 0 s, since it began to {stage} \({setting}\)"):
            await process.recv(silence=lambda of: 0.01 if of == stage else DEADLINE_S)
    finally:
        await process.stop()


async def test_a_dataset_that_is_tokenised_no_further_is_silence_and_one_that_is_read_on_is_not() -> None:
    def progress(done: int) -> str:
        return f"""'{{"event": "progress", "stage": "tokenise", "done": {done}, "of": 9}}'"""

    process = await saying(progress(1), progress(2), *[progress(3)] * 5)
    heard: list[int] = []
    await process.start_job(bad_start(Path("nowhere")), progress=lambda progressed: heard.append(progressed.done))
    try:
        with pytest.raises(LearnerStopped, match=r"made no progress for 0 s, since it began to tokenise"):
            await process.recv(silence=lambda stage: 0.2 if stage == "tokenise" else DEADLINE_S)
    finally:
        await process.stop()
    assert heard == [1, 2, 3]


async def test_a_message_may_be_as_long_as_the_steps_of_a_job_make_it() -> None:
    process = await saying("""'{"event": "error", "code": "c", "detail": "' + "x" * (17 << 20) + '"}'""")
    try:
        said = await process.recv(silence=lambda stage: DEADLINE_S)
        assert isinstance(said, Failed)
        assert len(said.detail) == 17 << 20
    finally:
        await process.stop()


async def test_a_message_to_a_process_that_has_ended_is_refused_as_such() -> None:
    process = await saying()
    os.kill(process.pid, signal.SIGKILL)
    await process.wait_stopped()
    with pytest.raises(LearnerStopped, match="gone"):
        await process.send(Stored(step=1))
    await process.stop()

"""Where training processes come from: one waits with its imports done, and every job gets one of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from synth.trainer.owner.learner_process import UNLIMITED_LINE, LearnerPool, LearnerProcess, LearnerStopped
from synth.trainer.protocol import Failed, Start, Stored

DEADLINE_S = 60


@pytest.fixture
async def learners() -> AsyncIterator[LearnerPool]:
    """With one process waiting, as in a service that has settled."""
    found = LearnerPool(threads=1)
    keeping = asyncio.create_task(found.keep_one_warm())
    await one_is_waiting(found)
    yield found
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert children() == []


async def one_is_waiting(learners: LearnerPool) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while learners.warm_pid is None:  # noqa: ASYNC110 - nobody else is told
            await asyncio.sleep(0)


def children() -> list[int]:
    return [c.pid for c in psutil.Process().children() if "synth.trainer.learner.main" in c.cmdline()]


def bad_start(folder: Path) -> Start:
    return Start(kind="rl", config={"lr": -1}, model_dir=str(folder), work_dir=str(folder))


async def says_what_is_wrong(learner: LearnerProcess, folder: Path) -> None:
    """That it listens: it answers a job that nobody could train."""
    await learner.start_job(bad_start(folder), progress=lambda stage: None)
    assert isinstance(await learner.recv(silence=lambda stage: DEADLINE_S), Failed)


async def test_a_job_gets_the_process_that_waits_and_the_next_job_another(
    learners: LearnerPool, tmp_path: Path
) -> None:
    waiting = learners.warm_pid
    async with learners.acquire() as first:
        assert first.pid == waiting
        assert children() == [waiting]
        await says_what_is_wrong(first, tmp_path)
    await one_is_waiting(learners)
    async with learners.acquire() as second:
        assert second.pid != waiting
        await says_what_is_wrong(second, tmp_path)


async def test_a_waiting_process_that_was_killed_is_not_handed_out(learners: LearnerPool, tmp_path: Path) -> None:
    waiting = learners.warm_pid
    assert waiting is not None
    os.kill(waiting, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        while learners.warm_pid is not None:  # noqa: ASYNC110 - nobody else is told
            await asyncio.sleep(0)
    async with learners.acquire() as learner:
        await says_what_is_wrong(learner, tmp_path)


async def test_a_process_that_is_killed_at_work_ends_the_attempt(learners: LearnerPool, tmp_path: Path) -> None:
    async with learners.acquire() as learner:
        os.kill(learner.pid, signal.SIGKILL)
        with pytest.raises(LearnerStopped):
            await says_what_is_wrong(learner, tmp_path)


async def test_a_training_process_is_not_given_the_secrets_of_its_service(monkeypatch):
    monkeypatch.setenv("SYNTH_CLUSTER_SECRET", "not-for-children")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-children")
    process = await LearnerProcess.spawn(threads=1)
    try:
        given = psutil.Process(process.pid).environ()
    finally:
        await process.stop()
    assert given["OMP_NUM_THREADS"] == "1"
    assert "not-for-children" not in given.values()


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
    return LearnerProcess(process)


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

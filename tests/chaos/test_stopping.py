"""A job that is told to stop, or whose trainer is, does so at once, wherever it stands."""

from __future__ import annotations

import asyncio
import logging
import signal
from datetime import UTC, datetime

import pytest

from synth.bus.server.topology import ACK_WAIT_S
from synth.events import JobStarted
from synth.runtime.environment.env_file import read_env_file
from tests.chaos.event_recorder import EventRecorder, strike
from tests.chaos.job_text import demo
from tests.e2e.platform import Platform, rl
from tests.e2e.task_apps import letters, served

#: From the answer that the user gets to the end of the job.
CANCEL_S = 5.0

figures = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(1200)


async def cancelled(platform: Platform, log: EventRecorder, job: str, *, fact: str) -> None:
    """Cancel a job; it must end with `fact`, soon, and say so to the user."""
    await asyncio.to_thread(platform.client.jobs.cancel, job)
    asked = datetime.now(UTC)
    ended = await log.until(fact, timeout=30)
    assert (ended.time - asked).total_seconds() < CANCEL_S
    code, found = await asyncio.to_thread(platform.outcome, job)
    assert (code != 0, found["state"]) == (True, "cancelled")
    assert log.ended == fact


async def test_jobs_are_cancelled_while_they_train_and_while_they_wait_for_a_trainer(
    platform: Platform, record_events, math_rows, letters_flags: tuple[str, ...]
):
    endless = await asyncio.to_thread(
        platform.submit, demo("sft", total_steps=100_000, checkpoint_every=50), "--dataset", str(math_rows)
    )
    async with record_events(endless) as training:
        await training.until("train.step", timeout=60)
        waits = await asyncio.to_thread(platform.submit, demo("rl_long"), *letters_flags)
        async with record_events(waits) as waiting:
            await waiting.until("policy.loaded", timeout=60)
            await cancelled(platform, waiting, waits, fact="job.withdrawn")
        await cancelled(platform, training, endless, fact="job.cancelled")


async def test_a_job_whose_environment_hangs_is_cancelled(platform: Platform, record_events):
    key = read_env_file(platform.shell.folder / ".env")["ENVIRONMENT_API_KEY"]
    with served(letters(key), fault=lambda n: "hang") as app:
        job = await asyncio.to_thread(platform.submit, rl("tiny-qwen3", app.url))
        async with record_events(job) as log:
            await log.until("rollout.requested", timeout=60)
            await cancelled(platform, log, job, fact="job.cancelled")


async def test_a_trainer_that_is_told_to_end_hands_its_job_back_at_once(
    platform: Platform, record_events, letters_flags: tuple[str, ...]
):
    job = await asyncio.to_thread(platform.submit, demo("rl_long", iterations_per_epoch=20), *letters_flags)
    async with record_events(job) as log:
        await log.until("train.step", timeout=90)
        told = datetime.now(UTC)
        healthy_s = await asyncio.to_thread(strike, platform.shell, "trainer", signal.SIGTERM)
        again = await log.until("job.started", such=lambda r: isinstance(r.event, JobStarted) and r.event.attempt == 2)
        # Less than `ack_wait`, before which nobody is given the task of a killed one. Most of it is the start, which
        # takes a busy machine longer.
        handed = (again.time - told).total_seconds()
        figures.info(f"next attempt {handed:.1f} s after SIGTERM")
        assert handed < max(ACK_WAIT_S, healthy_s + 3)
        await log.until("job.succeeded", timeout=90)

"""A paused job holds no worker, and goes on where it was: to the user, as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from synth.events import CheckpointSaved, JobPaused, JobStarted, TrainResumed, TrainStep
from tests.chaos.event_recorder import EventRecorder, pid_of
from tests.chaos.job_text import demo
from tests.chaos.test_kills import assert_whole
from tests.e2e.platform import Platform

STEPS = 12

pytestmark = pytest.mark.timeout(1200)


async def steer(platform: Platform, verb: str, job: str) -> dict[str, Any]:
    """Pause, resume or cancel a job; the job as it is then."""
    reply = await asyncio.to_thread(platform.api.post, f"/api/jobs/{job}/{verb}")
    assert reply.status_code == 202, reply.text
    return reply.json()


def step_is(k: int):
    """Whether an event is of this training step."""
    return lambda recorded: getattr(recorded.event, "step", 0) == k


def damage_last_checkpoint(platform: Platform, log: EventRecorder) -> int:
    """Change one bit of the weights of the newest checkpoint; returns its step."""
    saved = log.of("checkpoint.saved")[-1].event
    assert isinstance(saved, CheckpointSaved)
    folder = (
        platform.shell.folder / ".synth" / "blobs" / saved.tree.uri.removeprefix("blob://").partition(".manifest")[0]
    )
    weights = max(folder.rglob("*.safetensors"), key=lambda file: file.stat().st_size)
    body = bytearray(weights.read_bytes())
    body[-1] ^= 1
    weights.write_bytes(body)
    return saved.step


async def test_a_paused_rl_job_lets_another_one_run_and_then_goes_on_though_its_last_checkpoint_is_damaged(
    platform: Platform, record_events, math_rows, letters_flags: tuple[str, ...]
):
    job = await asyncio.to_thread(platform.submit, demo("rl_long", iterations_per_epoch=STEPS), *letters_flags)
    async with record_events(job) as log:
        await log.until("train.step", such=step_is(4), timeout=90)
        await steer(platform, "pause", job)
        assert (await steer(platform, "pause", job))["state"] in ("pausing", "paused")
        paused = await log.until("job.paused", timeout=60)
        assert isinstance(paused.event, JobPaused)
        assert step_is(paused.event.step)(log.of("train.step")[-1])

        # The cluster has one trainer: whoever holds it keeps the other job out.
        other = await asyncio.to_thread(platform.submit, demo("sft", total_steps=5), "--dataset", str(math_rows))
        # A rollout that was being appended when the job paused is in the log by now; nothing else follows it.
        seen = len(log.seen)
        await asyncio.to_thread(platform.succeeded, other)
        assert {r.type for r in log.seen[seen:]} <= {"watch.heartbeat"}

        damaged = damage_last_checkpoint(platform, log)
        assert (await steer(platform, "resume", job))["state"] != "paused"
        await steer(platform, "resume", job)
        await log.until("job.succeeded", timeout=120)
        # It goes on from the checkpoint before, and no step is announced twice.
        [resumed] = [r.event for r in log.of("train.resumed") if isinstance(r.event, TrainResumed)]
        assert 0 < resumed.step < damaged == paused.event.step
        assert_whole(log, steps=STEPS)
        assert [r.type for r in log.seen if r.type in ("job.pause_requested", "job.paused", "job.resumed")] == [
            "job.pause_requested",
            "job.paused",
            "job.resumed",
        ]
        assert [r.event.attempt for r in log.of("job.started") if isinstance(r.event, JobStarted)] == [1, 2]
        assert await log.dead_letters() == []
    found = await asyncio.to_thread(platform.succeeded, job)
    assert await asyncio.to_thread(platform.greedy, found["model"], "What is 58 + 67?")


async def test_a_job_is_paused_and_resumed_at_once_again_and_again(
    platform: Platform, record_events, letters_flags: tuple[str, ...]
):
    job = await asyncio.to_thread(platform.submit, demo("rl_long", iterations_per_epoch=STEPS), *letters_flags)
    async with record_events(job) as log:
        for k in (2, 4, 6):
            await log.until("train.step", such=step_is(k), timeout=90)
            known = len(log.seen)
            await steer(platform, "pause", job)
            # At once: what the workers held for the term before is not let go of yet.
            await log.until("job.paused", after=known, timeout=60)
            await steer(platform, "resume", job)
        await log.until("job.succeeded", timeout=150)
        assert_whole(log, steps=STEPS)
        assert len(log.of("job.resumed")) == 3
        assert await log.dead_letters() == []


async def test_a_trainer_that_is_killed_while_it_pauses_leaves_a_job_that_pauses(
    platform: Platform, record_events, math_rows
):
    job = await asyncio.to_thread(
        platform.submit, demo("sft", total_steps=150, checkpoint_every=1000), "--dataset", str(math_rows)
    )
    async with record_events(job) as log:
        await log.until("job.started", timeout=60)
        trainer = await asyncio.to_thread(pid_of, platform.shell, "trainer")
        os.kill(trainer, signal.SIGSTOP)
        await steer(platform, "pause", job)
        os.kill(trainer, signal.SIGKILL)
        await log.until("job.paused", timeout=60)
        await steer(platform, "resume", job)
        await log.until("job.succeeded", timeout=90)
        steps = [r.event.step for r in log.of("train.step") if isinstance(r.event, TrainStep)]
        assert steps == list(range(1, 151))


async def test_a_paused_sft_job_goes_on_at_the_step_that_it_was_at(platform: Platform, record_events, math_rows):
    job = await asyncio.to_thread(
        platform.submit, demo("sft", total_steps=100_000, checkpoint_every=100), "--dataset", str(math_rows)
    )
    async with record_events(job) as log:
        await log.until("train.step", timeout=60)
        await steer(platform, "pause", job)
        paused = await log.until("job.paused", timeout=60)
        assert isinstance(paused.event, JobPaused)
        assert step_is(paused.event.step)(log.of("train.step")[-1])
        await steer(platform, "resume", job)
        resumed = await log.until("train.resumed", timeout=60)
        assert isinstance(resumed.event, TrainResumed)
        assert resumed.event.step == paused.event.step
        assert resumed.event.loss_then == resumed.event.loss_now is not None
        known = len(log.seen)
        await steer(platform, "pause", job)
        await log.until("job.paused", after=known, timeout=60)
        assert (await steer(platform, "cancel", job))["state"] == "cancelled"


async def test_a_job_is_cancelled_while_it_pauses(platform: Platform, record_events, math_rows):
    job = await asyncio.to_thread(
        platform.submit, demo("sft", total_steps=100_000, checkpoint_every=50), "--dataset", str(math_rows)
    )
    async with record_events(job) as log:
        await log.until("train.step", timeout=60)
        trainer = await asyncio.to_thread(pid_of, platform.shell, "trainer")
        os.kill(trainer, signal.SIGSTOP)
        try:
            assert (await steer(platform, "pause", job))["state"] == "pausing"
            assert (await steer(platform, "cancel", job))["state"] == "cancelling"
        finally:
            os.kill(trainer, signal.SIGCONT)
        await log.until("job.cancelled", timeout=30)
        assert log.of("job.paused") == []

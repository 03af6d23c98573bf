"""`kill -9` of each service in turn, and of the bus, in the middle of a job; then of everything at once."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from synth.events import RolloutBatched, RolloutCompleted, TrainResumed, TrainStep
from tests.chaos.event_recorder import EventRecorder, pid_of, strike
from tests.chaos.job_text import demo
from tests.e2e.platform import Platform

VICTIMS = ("gateway", "validator", "verifier", "files", "rollouts", "inference", "judge", "trainer", "nats")
STEPS = 120

#: What an owner that died may cost at most: `ack_wait` (10 s), its successor's start, and the step itself.
STEP_AFTER_KILL_S = 45.0

figures = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(1200)


async def submitted(platform: Platform, flags: tuple[str, ...], *, steps: int) -> str:
    return await asyncio.to_thread(platform.submit, demo("rl_long", iterations_per_epoch=steps), *flags)


@pytest.mark.soak
async def test_a_job_and_its_watcher_outlive_each_service(
    platform: Platform, record_events, letters_flags: tuple[str, ...]
):
    shell = platform.shell
    job = await submitted(platform, letters_flags, steps=STEPS)
    watcher = shell.start("jobs", "watch", job)
    async with record_events(job) as log:
        await log.until("train.step", timeout=90)
        report: list[str] = []
        for victim in VICTIMS:
            known = len(log.of("train.step"))
            healthy_s = await asyncio.to_thread(strike, shell, victim)
            # Steps that were made while the victim was away prove nothing of its successor.
            await log.until("train.step", after=len(log.seen), timeout=STEP_AFTER_KILL_S)
            longest = max((b.time - a.time).total_seconds() for a, b in pairwise(log.of("train.step")[known - 1 :]))
            report.append(f"{victim}: healthy after {healthy_s:.1f} s, longest step {longest:.1f} s")
        await log.until("job.succeeded", timeout=180)
        figures.info("\n".join(["each kill:", *report]))

        assert_whole(log, steps=STEPS)
        resumes = log.of("train.resumed")
        assert len(log.of("job.started")) == len(resumes) + 1 > 1
        assert await log.dead_letters() == []
    out, err = await asyncio.to_thread(watcher.communicate, timeout=30)
    assert watcher.returncode == 0, (out, err)
    found = await asyncio.to_thread(platform.succeeded, job)
    assert found["attempt"] == len(resumes) + 1
    assert await asyncio.to_thread(platform.greedy, found["model"], "What is 58 + 67?")


async def test_a_job_goes_on_after_a_power_cut(platform: Platform, record_events, letters_flags: tuple[str, ...]):
    shell = platform.shell
    job = await submitted(platform, letters_flags, steps=20)
    async with record_events(job) as log:
        await log.until("train.step", such=lambda r: getattr(r.event, "step", 0) == 5, timeout=90)
    for pid in await asyncio.to_thread(shell.alive):
        # A child may end when its parent has.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(shell.ok, "up", "--detach", "--port", str(shell.port))
    async with record_events(job) as log:
        await log.until("job.succeeded", timeout=90)
        assert_whole(log, steps=20)
        assert len(log.of("job.started")) == 2
        assert await log.dead_letters() == []


async def test_a_bus_that_hangs_is_started_again(platform: Platform):
    healthy_s = await asyncio.to_thread(strike, platform.shell, "nats", signal.SIGSTOP)
    figures.info(f"healthy {healthy_s:.1f} s after it hung")
    assert "ended" in (platform.shell.folder / ".synth" / "logs" / "supervisor.log").read_text()
    await asyncio.to_thread(platform.client.jobs.list)


async def test_steps_that_a_checkpoint_covers_are_announced_by_whoever_goes_on(
    platform: Platform, record_events, math_rows: Path
):
    job = await asyncio.to_thread(
        platform.submit, demo("sft", total_steps=410, checkpoint_every=400), "--dataset", str(math_rows)
    )
    async with record_events(job) as log:
        await log.until("job.started", timeout=60)
        trainer = await asyncio.to_thread(pid_of, platform.shell, "trainer")
        # Its steps are announced after it, one by one: the trainer dies before it has said them all.
        await log.until("checkpoint.saved", timeout=120)
        os.kill(trainer, signal.SIGKILL)
        await log.until("job.succeeded", timeout=120)
        trained = [r.event for r in log.of("train.step") if isinstance(r.event, TrainStep)]
        assert [s.step for s in trained] == list(range(1, 411))
        assert 2 in {s.attempt for s in trained if s.step <= 400}
        assert all(math.isfinite(s.values["loss"]) for s in trained)


def assert_whole(log: EventRecorder, *, steps: int) -> None:
    """Every step and batch once, in order, on what the policy of that very step sampled; resumed exactly."""
    trained = [r.event for r in log.of("train.step") if isinstance(r.event, TrainStep)]
    assert [s.step for s in trained] == list(range(1, steps + 1))
    batches = [r.event for r in log.of("rollout.batch") if isinstance(r.event, RolloutBatched)]
    assert [b.iteration for b in batches] == list(range(1, steps + 1))
    for step in trained:
        assert math.isfinite(step.values["reward_mean"]), step
        # An iteration whose groups all agree moves nothing, and has no ratio to speak of.
        assert step.values["skipped"] or abs(step.values["ppo_kl_first"]) < 1e-8, step
    rollouts = [r.event for r in log.of("rollout.completed") if isinstance(r.event, RolloutCompleted)]
    assert [r for r in rollouts if r.versions != (r.iteration - 1, r.iteration - 1)] == []
    assert len({r.rollout_id for r in rollouts}) == len(rollouts) == steps * 32
    for resumed in log.of("train.resumed"):
        assert isinstance(resumed.event, TrainResumed)
        assert resumed.event.same_fingerprint
        assert resumed.event.loss_then == resumed.event.loss_now is not None

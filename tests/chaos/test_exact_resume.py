"""A trainer that is killed again and again makes the very model that an undisturbed one makes of the same batches."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from synth.blobs import BlobStore
from synth.events import (
    EvalCompleted,
    JobStarted,
    RolloutCompleted,
    RolloutRequested,
    TrainResumed,
    TrainStep,
)
from tests.chaos.event_recorder import EventRecorder, pid_of
from tests.chaos.job_text import demo
from tests.chaos.replay import differing_files
from tests.e2e.platform import Platform

# Enough that the job outlives five kills however fast the machine is: a kill needs a look at the process table.
STEPS = 60
EVALUATED_EVERY = 20
SEEDS = 16

#: Each opens another window of a step: asked for, collected, published, resumable, announced.
MOMENTS = ["rollout.requested", "rollout.batch", "policy.published", "checkpoint.saved", "train.step"]

# What the harness of `make storm` replays after its faults is whole jobs too: this one is for the five kills of one.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.soak]


async def test_a_model_trained_through_five_kills_is_the_replay_of_its_log_to_the_byte_and_is_judged_once_a_step(
    platform: Platform, record_events, sft_model: str, math_url: str, tmp_path: Path
):
    job = await asyncio.to_thread(
        platform.submit,
        demo("rl_long", iterations_per_epoch=STEPS, async_level=1)
        + f"[evaluation]\nevery_n_iters = {EVALUATED_EVERY}\ninstances = {SEEDS}\n",
        *("--model", sft_model, "--task-url", math_url),
    )
    async with record_events(job) as log:
        moments = random.Random(0).sample(MOMENTS, len(MOMENTS))
        for attempt, moment in enumerate(moments, start=1):
            await log.until("job.started", such=lambda r, k=attempt: _attempt(r.event) == k, timeout=60)
            trainer = await asyncio.to_thread(pid_of, platform.shell, "trainer")
            await log.until(moment, after=len(log.seen), timeout=60)
            os.kill(trainer, signal.SIGKILL)
        await log.until("job.succeeded", timeout=180)

        assert [_attempt(r.event) for r in log.of("job.started")] == [1, 2, 3, 4, 5, 6]
        steps = [r.event for r in log.of("train.step")]
        assert [s.step for s in steps if isinstance(s, TrainStep)] == list(range(1, STEPS + 1))
        assert all("reward_mean" in s.values for s in steps if isinstance(s, TrainStep))
        for resumed in (r.event for r in log.of("train.resumed")):
            assert isinstance(resumed, TrainResumed)
            assert resumed.same_fingerprint
            assert resumed.loss_then == resumed.loss_now
        _check_evaluations(log)
        blobs = BlobStore.open(f"file:{platform.shell.folder / '.synth' / 'blobs'}")
        assert await differing_files(log.seen, blobs, tmp_path) == []


def _check_evaluations(log: EventRecorder) -> None:
    """Each due step, the source model's included, was asked for once and judged once, seed by seed."""
    due = list(range(0, STEPS + 1, EVALUATED_EVERY))
    asked = [r.event for r in log.of("rollout.requested")]
    assert [e.iteration for e in asked if isinstance(e, RolloutRequested) and e.mode == "eval"] == due
    judged = [r.event for r in log.of("eval.completed")]
    assert [(e.step, e.instances) for e in judged if isinstance(e, EvalCompleted)] == [(k, SEEDS) for k in due]
    played = [r.event for r in log.of("rollout.completed")]
    seeds = [(e.iteration, e.seed) for e in played if isinstance(e, RolloutCompleted) and e.mode == "eval"]
    assert sorted(seeds) == [(k, 1_000_000 + i) for k in due for i in range(SEEDS)]


def _attempt(event: object) -> int | None:
    return event.attempt if isinstance(event, JobStarted) else None

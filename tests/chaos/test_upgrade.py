"""A rolling upgrade: each service is ended and started as the next release in the middle of a job."""

from __future__ import annotations

import asyncio
import json
import logging
import signal

import httpx
import pytest

from synth.bus.connection import Connection
from synth.bus.replay import replay_messages
from tests.chaos.conftest import demo
from tests.chaos.event_recorder import strike
from tests.chaos.next_release.sitecustomize import VERSION
from tests.chaos.test_kills import assert_whole
from tests.e2e.cli.conftest import Shell
from tests.e2e.platform import Platform

STEPS = 160
SERVICES = ("gateway", "validator", "verifier", "files", "rollouts", "inference", "judge", "trainer")

figures = logging.getLogger(__name__)

pytestmark = [pytest.mark.timeout(900), pytest.mark.soak]


def versions(shell: Shell) -> dict[str, str]:
    """What each service says that it is."""
    found: dict[str, str] = {}
    for name, process in shell.processes().items():
        if name in SERVICES:
            reply = httpx.get(f"http://127.0.0.1:{process['port']}/healthz", timeout=10)
            assert reply.status_code == 200, (name, reply.text)
            found[name] = reply.json()["version"]
    return found


async def of_the_next_release(bus: Connection, job: str) -> set[str]:
    """The types of the job's events that the next release wrote."""
    messages = await replay_messages(bus.nc, [f"*.*.*.{job}"])
    return {".".join(m.subject.split(".")[:2]) for m in messages if "of_the_next_release" in json.loads(m.data)}


async def test_a_job_goes_on_while_each_service_in_turn_becomes_the_next_release(
    platform: Platform, record_events, sft_model: str, math_url: str
):
    shell = platform.shell
    before = await asyncio.to_thread(versions, shell)
    assert VERSION not in before.values()
    flags = ("--model", sft_model, "--task-url", math_url)
    job = await asyncio.to_thread(platform.submit, demo("rl_long", iterations_per_epoch=STEPS), *flags)
    release = shell.folder / "next-release"
    release.touch()
    async with record_events(job) as log:
        await log.until("train.step", timeout=120)
        for name in SERVICES:
            seconds = await asyncio.to_thread(strike, shell, name, signal.SIGTERM)
            figures.info(f"{name}: healthy as the next release after {seconds:.1f} s")
            await log.until("train.step", after=len(log.seen), timeout=120)
            # Old and new ones read what the other has written.
            assert (await asyncio.to_thread(versions, shell))[name] == VERSION
        await log.until("job.succeeded", timeout=300)
        assert_whole(log, steps=STEPS)
        assert await log.dead_letters() == []
        written = await of_the_next_release(log.bus, job)
    assert written >= {"rollout.completed", "rollout.batch", "policy.loaded", "train.step", "job.succeeded"}
    assert set((await asyncio.to_thread(versions, shell)).values()) == {VERSION}
    release.unlink()
    found = await asyncio.to_thread(platform.succeeded, job)
    assert await asyncio.to_thread(platform.greedy, found["model"], "What is 58 + 67?")

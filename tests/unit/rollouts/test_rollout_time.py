"""A rollout has its time, the time that its policy was not given, and a grace; then its app has failed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from synth.errors import Transient
from synth.methods.rewards import RewardSettings
from synth.outbound.answer_memory import AnswerMemory
from synth.rollouts.jobs.rollout_runner import RolloutRunner
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded, TaskAppReply, score
from synth.runtime.off_loop import OffLoop
from tests.keyrings import credentials
from tests.unit.rollouts.clients.test_task_app import SETTINGS
from tests.unit.rollouts.rewards.test_scoring import SAMPLED

REPLICA: Any = SimpleNamespace(url="http://replica")


class Stalling:
    """A player that answers when it is told to, and a recorder that says how long its policy stood still."""

    def __init__(self, *stood_still: float) -> None:
        self.stood_still_next = list(stood_still)
        self.answered = asyncio.Event()
        self.asked = asyncio.Event()
        self.cancelled = False

    async def play(self, *_: Any, **__: Any) -> TaskAppReply:
        try:
            await self.answered.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return TaskAppReply(200, "played")

    async def stood_still(self, url: str, cid: str) -> float:
        self.asked.set()
        return self.stood_still_next.pop(0)


def runner(stalling: Any, *, wait_s: float = 60.0) -> RolloutRunner:
    return RolloutRunner(
        "job_1",
        msgspec.structs.replace(SETTINGS, rollout_timeout_s=0.02),
        RewardSettings(),
        player=stalling,
        recorder=stalling,
        replicas=SimpleNamespace(),  # type: ignore[arg-type]
        versions=SimpleNamespace(),  # type: ignore[arg-type]
        credentials=credentials(),
        public_url=None,
        replica_wait_s=wait_s,
        grace_s=0.02,
        transcript_bytes=4096,
        off_loop=OffLoop(),
        answers=AnswerMemory(1 << 30, wait_s=5),
        org="org_1",
        progress=lambda stage: None,
    )


async def play(runner: RolloutRunner) -> TaskAppReply:
    nothing: Any = None
    async with asyncio.timeout(10):
        return await runner._play_in_time(nothing, nothing, REPLICA, url="http://model", cid="trace_1", room=nothing)


async def test_an_app_that_does_not_answer_in_time_and_grace_is_given_up() -> None:
    stalling = Stalling(0.0)
    reply = await play(runner(stalling))
    assert (reply.timed_out, reply.body) == (True, "no answer within 0 s (rollout_timeout_s) and 0 s of grace")
    assert stalling.cancelled


async def test_time_that_the_policy_was_not_given_is_added() -> None:
    stalling = Stalling(30.0)
    playing = asyncio.create_task(play(runner(stalling)))
    await stalling.asked.wait()
    stalling.answered.set()
    assert (await playing).body == "played"


async def test_a_policy_that_stands_still_for_too_long_is_played_elsewhere() -> None:
    stalling = Stalling(61.0)
    with pytest.raises(Transient, match=r"not given its time for 61 s \(SYNTH_POLICY_WAIT_S\)"):
        await play(runner(stalling))
    assert stalling.cancelled


@pytest.mark.parametrize("reply", [TaskAppReply(0, "no answer", timed_out=True), TaskAppReply(500, "cannot be read")])
def test_an_app_that_fails_on_a_reply_that_was_cut_off_is_the_policys_failure(reply: TaskAppReply) -> None:
    def scored(*, out_of_time: bool) -> Rewarded | EnvironmentFailed:
        calls = [replace(SAMPLED, out_of_time=out_of_time)]
        return score(reply, calls, url="app", failure_reward=-1.0, rewards=RewardSettings())

    failed = scored(out_of_time=True)
    assert isinstance(failed, Rewarded)
    assert (failed.outcome, sum(failed.sources.environment)) == ("policy_failure", -1.0)
    assert isinstance(scored(out_of_time=False), EnvironmentFailed)

"""A large answer from outside delays nobody: the loop of the service that reads it goes on turning."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from synth.errors import UserError
from synth.judge.api.chat import JudgeChat, ReplyNotJson, read_refusal, read_reply
from synth.methods.rewards import RewardSettings
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.http_guard import GuardPolicy, guarded_client
from synth.rollouts.jobs.rollout_runner import RolloutRunner
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded, TaskAppReply, UnreadAnswer
from synth.runtime.off_loop import OffLoop
from synth.verifier.task_app import TaskAppCheck
from tests.loop_gaps import LoopGaps, RecordProperty
from tests.unit.loops.hostile_json import hostile_bodies
from tests.unit.rollouts.clients.test_task_app import SETTINGS
from tests.unit.rollouts.rewards.test_scoring import SAMPLED

BODIES = hostile_bodies()
NOTHING: Any = SimpleNamespace(url="http://app", quirks={})


def runner() -> RolloutRunner:
    return RolloutRunner(
        "job_1",
        SETTINGS,
        RewardSettings(),
        player=NOTHING,
        recorder=NOTHING,
        replicas=NOTHING,
        versions=NOTHING,
        credentials=NOTHING,
        public_url=None,
        replica_wait_s=1,
        grace_s=1,
        transcript_bytes=1 << 20,
        off_loop=OffLoop(),
        answers=AnswerMemory(1 << 30, wait_s=5),
        org="org_1",
        progress=lambda stage: None,
    )


@pytest.mark.parametrize("case", BODIES)
async def test_a_task_apps_answer_to_a_rollout(case: str, record_property: RecordProperty):
    reply = TaskAppReply(200, None, unread=UnreadAnswer(BODIES[case], ("trace_a", "key"), max_depth=100))
    async with LoopGaps() as gaps:
        settled = await runner()._settle(reply, [SAMPLED], True)
    if case == "numbers":
        assert isinstance(settled.scored, Rewarded)
        assert len(msgspec.json.encode(settled.scored.info)) <= 66 << 10
    else:
        assert isinstance(settled.scored, EnvironmentFailed)
    gaps.check(record_property, "rollouts", case)


@pytest.mark.parametrize("case", BODIES)
async def test_a_task_apps_answer_to_the_verifier(case: str, record_property: RecordProperty):
    body = BODIES[case]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        for start in range(0, len(body), 1 << 16):
            writer.write(body[start : start + (1 << 16)])
            await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(handle, "127.0.0.1", 0) as server,
        guarded_client(GuardPolicy(allow_loopback=True), timeout=30) as client,
    ):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        check = TaskAppCheck(client, url, call_deadline_s=60, retry_for_s=0, off_loop=OffLoop(), org="org_1")
        async with LoopGaps() as gaps:
            if case == "short texts":
                assert (await check.run([])).name == "x"
            else:
                with pytest.raises(UserError):
                    await check.run([])
    gaps.check(record_property, "verifier", case)


@pytest.mark.parametrize("case", BODIES)
async def test_an_answer_of_a_judges_api(case: str, record_property: RecordProperty):
    chat = JudgeChat(endpoints=NOTHING, off_loop=OffLoop(), max_reply_bytes=32 << 20, min_failing_timeout_s=1)
    endpoint: Any = SimpleNamespace(org="org_1")
    async with LoopGaps() as gaps:
        try:
            assert (await chat._off_process(read_reply, BODIES[case], endpoint)).answer is None
        except ReplyNotJson:
            assert case in ("empty lists", "nesting")
        assert len(await chat._off_process(read_refusal, BODIES[case], endpoint)) <= 64 << 10
    gaps.check(record_property, "judge", case)

"""What a task app is asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any, Literal

import msgspec
import pytest

from synth.ids import RolloutId
from synth.methods.rollouts import RolloutSettings, Sampling
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.http_guard import GuardPolicy
from synth.rollouts.clients.task_app import TaskAppClient
from synth.rollouts.collection.types import CollectRequest, RolloutSpec
from synth.rollouts.rewards.scoring import TaskAppReply

SETTINGS = RolloutSettings(
    task_url="",
    env_name=None,
    policy_name="policy",
    max_turns=2,
    ops=("agent", "env"),
    env_config={"size": 3},
    policy_config={},
    sampling=Sampling(temperature=1.0, max_tokens=8),
    max_concurrent_rollouts=1,
    failure_reward=0.0,
    rollout_timeout_s=10.0,
    max_retries=0,
)


async def play(
    settings: RolloutSettings,
    mode: Literal["train", "eval"] = "train",
    *,
    answer: bytes = b"{}",
    max_answer_bytes: int = 1000,
    headers: str = "",
) -> tuple[dict[str, Any], TaskAppReply]:
    """The body that a task app on loopback gets for one rollout, and what becomes of its answer."""
    bodies: list[dict[str, Any]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        bodies.append(json.loads(await reader.readexactly(length)))
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n{headers}connection: close\r\n\r\n"
        writer.write(head.encode() + answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = msgspec.structs.replace(settings, task_url=f"http://127.0.0.1:{port}")
        client = TaskAppClient(
            settings,
            job_id="job_1",
            key="k",
            limit=1,
            max_answer_bytes=max_answer_bytes,
            max_answer_depth=100,
            answer_within_s=60.0,
            guard=GuardPolicy(allow_loopback=True),
        )
        request = CollectRequest(iteration=1, mode=mode, seeds=[7], group_size=1, oldest_version=0)
        spec = RolloutSpec(rollout_id=RolloutId("job_1_t1_0"), index=0, group=0, seed=7)
        with AnswerMemory(1 << 30, wait_s=5).hold("org_1") as room:
            url = "http://llm/v1?cid=trace_a"
            reply = await client.play(request, spec, inference_url=url, cid="trace_a", room=room)
        await client.aclose()
    return bodies[0], reply.read()


async def asked_for(settings: RolloutSettings, mode: Literal["train", "eval"] = "train") -> dict[str, Any]:
    """The body that a task app gets for one rollout."""
    body, reply = await play(settings, mode)
    assert reply.status == 200
    return body


async def test_an_answer_that_is_too_large_names_the_setting():
    _, reply = await play(SETTINGS, answer=b"x" * 1001)
    assert (reply.status, reply.body) == (0, "the answer is larger than 1000 bytes (SYNTH_MAX_ANSWER_BYTES)")
    _, reply = await play(SETTINGS, answer=b"x" * 1000)
    assert reply.status == 200


@pytest.mark.parametrize(
    ("encoding", "answer", "body"),
    [
        ("gzip", gzip.compress(b'{"a": 1}', mtime=0), {"a": 1}),
        ("deflate", zlib.compress(b'{"a": 1}'), {"a": 1}),
        ("br", b"x", "the answer has Content-Encoding 'br'; expected gzip, deflate or none"),
        ("gzip", gzip.compress(b" " * 1001, mtime=0), "the answer is larger than 1000 bytes (SYNTH_MAX_ANSWER_BYTES)"),
    ],
)
async def test_a_compressed_answer_is_read_or_named(encoding: str, answer: bytes, body: Any):
    _, reply = await play(SETTINGS, answer=answer, headers=f"content-encoding: {encoding}\r\n")
    assert (reply.status, reply.body) == (200 if isinstance(body, dict) else 0, body)


@pytest.mark.parametrize("depth", [101, 480, 100_000])
async def test_an_answer_that_is_nested_too_deeply_is_the_environments_fault(depth: int):
    _, reply = await play(SETTINGS, answer=b"[" * depth + b"]" * depth, max_answer_bytes=1 << 20)
    assert reply.status == 0
    assert reply.body == "the answer is nested deeper than 100 levels (SYNTH_MAX_ANSWER_DEPTH)"
    _, reply = await play(SETTINGS, answer=b'{"a":' * 100 + b"1" + b"}" * 100)
    assert reply.status == 200


@pytest.mark.parametrize("name", ["math", None])
async def test_the_environment_is_named_only_where_the_job_names_one(name: str | None):
    body = await asked_for(msgspec.structs.replace(SETTINGS, env_name=name))
    assert body["env"] == {"config": {"size": 3}, "seed": 7} | ({"env_name": name} if name else {})


async def test_an_evaluation_may_have_an_environment_of_its_own():
    settings = msgspec.structs.replace(SETTINGS, evaluation_env_config={"split": "validation"})
    assert (await asked_for(settings))["env"]["config"] == {"size": 3}
    assert (await asked_for(settings, "eval"))["env"]["config"] == {"size": 3, "split": "validation"}


async def test_a_rollout_may_use_as_many_turns_as_the_job_allows():
    body = await asked_for(SETTINGS)
    assert body["ops"] == ["agent", "env", "agent", "env"]
    assert body["policy"]["config"]["max_llm_calls"] == 2


async def test_answers_that_hang_fill_their_organisations_share_of_the_memory_and_no_others():
    """Each sends 300 KiB of blanks and no end; two of them have room in half of 1 MiB."""
    end, answers = asyncio.Event(), AnswerMemory(1 << 20, wait_s=0.2)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 307202\r\nconnection: close\r\n\r\n" + b" " * 307_200)
        await end.wait()
        writer.write(b"{}")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = TaskAppClient(
            msgspec.structs.replace(SETTINGS, task_url=f"http://127.0.0.1:{port}"),
            job_id="job_1",
            key=None,
            limit=8,
            max_answer_bytes=1 << 19,
            max_answer_depth=100,
            answer_within_s=60.0,
            guard=GuardPolicy(allow_loopback=True),
        )

        async def rollout(org: str) -> TaskAppReply:
            request = CollectRequest(iteration=1, mode="train", seeds=[7], group_size=1, oldest_version=0)
            spec = RolloutSpec(rollout_id=RolloutId("job_1_t1_0"), index=0, group=0, seed=7)
            with answers.hold(org) as room:
                return await client.play(request, spec, inference_url="http://llm/v1", cid="trace_a", room=room)

        loud = [asyncio.create_task(rollout("loud")) for _ in range(5)]
        async with asyncio.timeout(20):
            refused: list[TaskAppReply] = []
            for reply in asyncio.as_completed(loud):
                refused.append(await reply)
                if len(refused) == 3:
                    break
            assert answers.memory.held_by("loud") == 2 * (307_202 - (64 << 10))
            quiet = asyncio.create_task(rollout("quiet"))
            end.set()
            assert (await quiet).read().body == {}
            replies = await asyncio.gather(*loud)
            assert sum(reply.unread is not None and reply.read().body == {} for reply in replies) == 2
        await client.aclose()
    assert all((reply.status, reply.crowded) == (0, True) for reply in refused)
    assert "no room for the answer within 0.2 s (SYNTH_ANSWER_MEMORY_WAIT_S)" in refused[0].body
    assert "of the 524,288 that one organisation may have (half of SYNTH_ANSWER_MEMORY_BYTES)" in refused[0].body
    assert answers.memory.held_by("loud") == answers.memory.held_by("quiet") == 0

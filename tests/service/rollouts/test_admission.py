"""Which replica a rollout begins at: never one whose policy is too old for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from synth.bus.kv.replicas import Announcement, Replica, ReplicaTable
from synth.bus.server.topology import REPLICAS
from synth.errors import Transient
from synth.methods.rewards import RewardSettings
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.http_guard import GuardPolicy
from synth.rollouts.clients.recorder import RecorderClient
from synth.rollouts.clients.task_app import TaskAppClient
from synth.rollouts.collection.deadline import Deadline
from synth.rollouts.collection.policy_versions import PolicyVersions
from synth.rollouts.collection.types import CollectRequest, CutOff
from synth.rollouts.concurrency.controller import Overload
from synth.rollouts.jobs.rollout_runner import RolloutRunner
from synth.runtime.off_loop import OffLoop
from synth.trajectories import ClosedRollout, closed_to_bytes, records_to_bytes
from tests.keyrings import calls_of, credentials
from tests.unit.rollouts.clients.test_task_app import SETTINGS
from tests.unit.rollouts.collection.test_collector import RECORD

JOB = "job_admission"
REQUEST = CollectRequest(iteration=4, mode="train", seeds=[1, 2, 3, 4], group_size=1, oldest_version=2)


def recorder() -> RecorderClient:
    """Every credential recorded one call."""

    async def closed(request: httpx.Request) -> httpx.Response:
        cids = json.loads(request.content)["cids"]
        return httpx.Response(200, content=closed_to_bytes([ClosedRollout(records_to_bytes([RECORD])) for _ in cids]))

    return RecorderClient(calls_of("rollouts"), "job_1", timeout_s=30, transport=httpx.MockTransport(closed))


@asynccontextmanager
async def task_app(status: Callable[[], int]) -> AsyncIterator[tuple[str, list[str]]]:
    """A task app on loopback, and the inference hosts that it was sent to."""
    sent_to: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        body = json.loads(await reader.readexactly(length))
        sent_to.append(httpx.URL(body["policy"]["config"]["inference_url"]).host)
        text = json.dumps({"metrics": {"mean_return": 1.0}})
        writer.write(
            f"HTTP/1.1 {status()} Said\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", sent_to


@asynccontextmanager
async def runner_at_replicas(bus_as, url: str, versions: PolicyVersions) -> AsyncIterator[RolloutRunner]:
    """A runner that knows the replicas "a" and "b" of the job from the bus."""
    inference = await bus_as("inference")
    for name in ("a", "b"):
        replica = Replica(
            id=name, boot="1", url=f"http://{name}", pool="default", models=[JOB], running=3, waiting=len(name)
        )
        await inference.js.publish(
            f"$KV.{REPLICAS}.{name}", msgspec.json.encode(Announcement(replica=replica, clock=0))
        )
    table = ReplicaTable(await bus_as("rollouts"))
    following = asyncio.create_task(table.follow())
    settings = msgspec.structs.replace(SETTINGS, task_url=url)
    app = TaskAppClient(
        settings,
        job_id=JOB,
        key=None,
        limit=4,
        max_answer_bytes=1 << 20,
        max_answer_depth=100,
        answer_within_s=60.0,
        guard=GuardPolicy(allow_loopback=True),
    )
    recording = recorder()
    try:
        async with asyncio.timeout(10):
            while len(table.serving(JOB)) < 2:
                await table.wait_serving(JOB, timeout=10)
                await asyncio.sleep(0)
        yield RolloutRunner(
            JOB,
            settings,
            RewardSettings(),
            player=app,
            recorder=recording,
            replicas=table,
            versions=versions,
            credentials=credentials(),
            public_url=None,
            transcript_bytes=1 << 20,
            off_loop=OffLoop(),
            answers=AnswerMemory(1 << 30, wait_s=5),
            org="org_1",
            replica_wait_s=0.2,
            grace_s=1.0,
            progress=lambda stage: None,
        )
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await app.aclose()
        await recording.aclose()


class _ObservedDeadline(Deadline):
    """A deadline that keeps whether it was told that its rollout is at the app."""

    at_app = False

    def mark_at_app(self, index: int) -> None:
        self.at_app = True
        super().mark_at_app(index)


async def test_a_rollout_begins_only_where_its_tokens_can_still_be_trained(bus_as):
    versions = PolicyVersions()
    deadlines: list[_ObservedDeadline] = []
    async with task_app(lambda: 200) as (url, sent_to), runner_at_replicas(bus_as, url, versions) as runner:

        async def play() -> list[str]:
            sent_to.clear()
            for group in range(4):
                [spec] = REQUEST.specs(JOB, group)
                deadlines.append(_ObservedDeadline([spec.index], 60.0))
                async with asyncio.timeout(10):
                    await runner._play_once(REQUEST, spec, deadlines[-1], CutOff(), retry_if_aborted=False)
            return sorted(sent_to)

        await versions.record_loaded(1, "a")
        with pytest.raises(Transient, match=f"no replica serves version 2 of {JOB}"):
            await play()
        assert (sent_to, [d.at_app for d in deadlines]) == ([], [False]), "and until then it is not at the app"
        await versions.record_loaded(2, "b")
        assert await play() == ["b"] * 4
        assert all(d.at_app for d in deadlines[1:])
        await versions.record_loaded(3, "a")
        assert await play() == ["a", "a", "b", "b"]
        assert runner.engine_queue() == (6, 2)


@pytest.mark.parametrize(
    ("status", "overload"), [(200, None), (429, Overload.REJECTED), (503, Overload.REJECTED), (500, None)]
)
async def test_an_app_that_says_too_many_is_told_from_one_that_is_broken(
    bus_as, status: int, overload: Overload | None
):
    versions = PolicyVersions()
    await versions.record_loaded(2, "a")
    async with (
        task_app(lambda: status) as (url, _),
        runner_at_replicas(bus_as, url, versions) as runner,
        asyncio.timeout(10),
    ):
        result = await runner.run_try(REQUEST, REQUEST.specs(JOB, 0)[0], Deadline([0], None), CutOff())
    assert result.overload is overload

"""Rollouts through the API: pages of them in every order, and one with what the log and the blobs say of it."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest

from synth.blobs import BlobStore
from synth.bus.publish import Publisher
from synth.errors import Problem
from synth.events import (
    BlobRef,
    FailedTries,
    RolloutBatched,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    RolloutRequested,
)
from synth.gateway.read_model import rollout_log
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta
from synth.transcripts.batch_header import LENGTH_BYTES, header_length
from synth.transcripts.transcript import Transcript, TranscriptTurn
from tests.service.gateway.job_histories import begin, step, verify
from tests.service.gateway.wait import wait_until_shown
from tests.service.jobs import unclaimed

NOWHERE = BlobRef(uri="blob://jobs/gone", size=9, sha256="0")


class Story:
    """A job's rollouts, as its trainer and its collector tell them: 2 seeds, 2 rollouts of each, an iteration."""

    def __init__(self, bus: Any, trainer: Any, fence: Any, blobs: BlobStore, org: str, job: str) -> None:
        self._rollouts, self._trainer, self._fence = Publisher(bus), Publisher(trainer), fence
        self._blobs, self._job, self._claim = blobs, job, unclaimed(org, job)

    async def request(self, iteration: int, *, mode: str = "train", oldest: int = 0) -> None:
        size = 1 if mode == "eval" else 2
        pinned = iteration if mode == "eval" else None
        event = RolloutRequested(
            iteration=iteration,
            mode=mode,
            seeds=[10, 20],
            group_size=size,
            oldest_version=oldest,
            pinned_version=pinned,
        )
        await self._trainer.fenced(event, fence=self._fence, id=f"{mode}:{iteration}")

    def _common(self, iteration: int, index: int, mode: str) -> dict[str, Any]:
        size = 1 if mode == "eval" else 2
        return {
            "rollout_id": f"{self._job}_{mode[0]}{iteration}_{index}",
            "iteration": iteration,
            "mode": mode,
            "index": index,
            "group": index // size,
            "seed": [10, 20][index // size],
        }

    async def complete(self, iteration: int, index: int, reward: float, *, mode: str = "train", **changes: Any) -> None:
        fields: dict[str, Any] = {
            "reward": reward,
            "trajectory": NOWHERE,
            "completion_tokens": 3,
            "calls": 1,
            "versions": (0, 0),
            "seconds": 0.5,
            "tries": 1,
        }
        event = RolloutCompleted(**self._common(iteration, index, mode) | fields | changes)
        await self._rollouts.fenced(event, fence=self._claim, id=f"c{event.rollout_id}")

    async def judge(self, iteration: int, index: int, reward: float | None, *, mode: str = "train") -> int:
        fields = {k: v for k, v in self._common(iteration, index, mode).items() if k not in ("group", "seed")}
        problem = None if reward is not None else Problem(what="prose")
        event = RolloutJudged(**fields, reward=reward, environment=0.5, problem=problem)
        return await self._rollouts.fenced(event, fence=self._claim, id=f"j{event.rollout_id}")

    async def fail(self, iteration: int, index: int, **changes: Any) -> None:
        fields = {"problem": Problem(what="HTTP 500: no"), "tries": 2}
        event = RolloutFailed(**self._common(iteration, index, "train") | fields | changes)
        await self._rollouts.fenced(event, fence=self._claim, id=f"f{event.rollout_id}")

    async def batch(self, iteration: int, metas: list[RolloutMeta], *, blob: BlobRef | None = None) -> None:
        """With a sequence for each rollout that has an advantage."""
        kept = [m for m in metas if m.advantage is not None]
        ids = np.arange(3, dtype=np.int32)
        branch = Branch(ids, np.ones(3, np.bool_), ids.astype(np.float32), np.zeros(3, np.int32), np.zeros(3, np.int32))
        meta = BatchMeta(
            job_id=self._job, iteration=iteration, temperature=1.0, rollouts=metas, groups_kept=1, groups_dropped=1
        )
        built = RolloutBatch.build(
            [branch] * len(kept), [m.advantage or 0.0 for m in kept], [metas.index(m) for m in kept], meta
        )
        body = built.to_bytes()
        blob = blob or await self._blobs.put_bytes(f"jobs/{self._job}/batches/{iteration}", body)
        header = body[: LENGTH_BYTES + header_length(body)]
        event = RolloutBatched(
            iteration=iteration,
            batch=blob,
            sequences=built.sequences,
            groups_kept=1,
            groups_dropped=1,
            values={},
            header_bytes=len(header),
            header_sha256=hashlib.sha256(header).hexdigest(),
        )
        await self._rollouts.fenced(event, fence=self._claim, id=str(iteration))

    def meta(self, iteration: int, index: int, reward: float, advantage: float | None, **changes: Any) -> RolloutMeta:
        id = f"{self._job}_t{iteration}_{index}"
        fields: dict[str, Any] = {"sampled_tokens": [3], "oldest_versions": [0]} | changes
        return RolloutMeta(rollout_id=id, seed=10, group=index // 2, reward=reward, advantage=advantage, **fields)


@pytest.fixture
async def job(user, bus_as) -> str:
    return (await user.submit())["id"]


@pytest.fixture
async def story(user, bus_as, blobs: BlobStore, job: str) -> Story:
    trainer, fence = await begin(bus_as, user.org, job)
    return Story(await bus_as("rollouts"), trainer, fence, blobs, user.org, job)


async def names(user, job: str, **wanted: Any) -> list[str]:
    """The short ids, of all pages of this query."""
    found: list[str] = []
    params: dict[str, Any] = {"limit": 3} | wanted
    while True:
        page = (await user.http.get(f"/api/jobs/{job}/rollouts", params=params)).raise_for_status().json()
        found += [r["id"].removeprefix(f"{job}_") for r in page["data"]]
        assert page["has_more"] == (page["next"] is not None)
        if page["next"] is None:
            return found
        assert len(page["data"]) == params["limit"]
        params["after"] = page["next"]


async def test_pages_in_every_order_hold_each_rollout_once(user, job: str, story: Story, monkeypatch):
    monkeypatch.setattr(rollout_log, "_PAGE", 2)
    rewards = {(1, 0): 0.5, (1, 1): -1.0, (1, 2): 0.5, (2, 0): 0.25, (2, 2): 1 / 3, (2, 3): 0.5}
    order: list[str] = []
    for iteration in (1, 2):
        await story.request(iteration)
        for index in range(4):
            if (iteration, index) in rewards:
                await story.complete(iteration, index, rewards[iteration, index])
            else:
                await story.fail(iteration, index, late=index == 1)
            order.append(f"t{iteration}_{index}")
        await story.batch(iteration, [])
    await story.request(2, mode="eval")
    for index in range(2):
        await story.complete(2, index, 0.125 * index, mode="eval")
        order.append(f"e2_{index}")

    assert await names(user, job) == order[::-1]
    assert await names(user, job, sort="oldest") == order
    assert await names(user, job, sort="worst") == ["t1_1", "e2_0", "e2_1", "t2_0", "t2_2", "t1_0", "t1_2", "t2_3"]
    assert await names(user, job, sort="best") == ["t1_0", "t1_2", "t2_3", "t2_2", "t2_0", "e2_1", "e2_0", "t1_1"]
    assert await names(user, job, iteration=1) == order[3::-1]
    assert await names(user, job, iteration=2, mode="train", sort="oldest") == order[4:8]
    assert await names(user, job, iteration=2, mode="eval") == ["e2_1", "e2_0"]
    assert await names(user, job, iteration=2, sort="worst") == ["e2_0", "e2_1", "t2_0", "t2_2", "t2_3"]
    assert await names(user, job, iteration=9) == []
    assert await names(user, job, seed=20) == ["e2_1", "t2_3", "t2_2", "t1_3", "t1_2"]
    assert await names(user, job, failed=True) == ["t2_1", "t1_3"]
    assert await names(user, job, mode="train", limit=1) == order[7::-1]


async def test_a_judged_rollout_has_the_reward_that_is_trained_and_stands_where_that_puts_it(
    user, bus_as, blobs: BlobStore, job: str
):
    trainer, fence = await begin(bus_as, user.org, job, rewards={"scores": "judges"})
    story = Story(await bus_as("rollouts"), trainer, fence, blobs, user.org, job)
    await story.request(1)
    for index, environment in enumerate((0.5, 0.9, 0.1, 0.7)):
        await story.complete(1, index, environment)
    await story.judge(1, 0, 0.25)
    await story.judge(1, 1, 0.125)
    await wait_until_shown(user, await story.judge(1, 2, None))
    assert await names(user, job, sort="best") == ["t1_0", "t1_1"]
    page = (await user.http.get(f"/api/jobs/{job}/rollouts", params={"sort": "oldest"})).json()
    assert [(r["reward"], r["environment"]) for r in page["data"]] == [
        (0.25, 0.5),
        (0.125, 0.9),
        (None, 0.1),
        (None, 0.7),
    ]
    await story.batch(1, [story.meta(1, 0, 0.25, 1.0), story.meta(1, 1, 0.125, -1.0)])
    shown = (await user.http.get(f"/api/jobs/{job}/rollouts/t1_2")).json()
    assert (shown["training"]["state"], shown["training"]["reason"]) == ("dropped", "unscored")


async def test_a_rollout_that_a_replaced_collector_abandoned_is_the_one_that_was_completed(
    user, job: str, story: Story
):
    await story.request(1)
    await story.fail(1, 0)
    await story.complete(1, 0, 1.0)
    await story.complete(1, 1, 0.0)
    await story.fail(1, 1, late=True)
    for sort in ("newest", "oldest", "best"):
        page = (await user.http.get(f"/api/jobs/{job}/rollouts", params={"sort": sort})).json()
        assert sorted((r["index"], r["outcome"]) for r in page["data"]) == [(0, "ok"), (1, "ok")], sort
    shown = (await user.http.get(f"/api/jobs/{job}/rollouts/t1_0")).json()
    assert [m["outcome"] for m in shown["group_members"]] == ["ok", "ok"]


async def test_one_rollout_has_its_transcript_its_group_and_its_advantage(
    user, job: str, story: Story, blobs: BlobStore, bus_as
):
    said = Transcript(turns=[TranscriptTurn(messages=[{"role": "user", "content": "2 + 2?"}], sampled_tokens=3)])
    transcript = await blobs.put_bytes(f"jobs/{job}/t", msgspec.json.encode(said))
    failed = [FailedTries(problem=Problem(what="HTTP 502"), times=2)]
    await story.request(1, oldest=0)
    await story.complete(1, 0, 1.0, transcript=transcript, failed_tries=failed, tries=3)
    await story.complete(1, 1, 0.0)

    async def show(name: str) -> dict[str, Any]:
        return (await user.http.get(f"/api/jobs/{job}/rollouts/{name}")).raise_for_status().json()

    shown = await show(f"{job}_t1_0")
    assert shown["transcript"]["turns"][0]["messages"] == [{"role": "user", "content": "2 + 2?"}]
    assert (shown["tries"], shown["failed_tries"][0]["times"]) == (3, 2)
    assert [(m["id"].removeprefix(job), m["reward"]) for m in shown["group_members"]] == [
        ("_t1_0", 1.0),
        ("_t1_1", 0.0),
    ]
    assert shown["training"]["state"] == "waiting"
    without = await show("t1_1")
    assert without["transcript"] is None
    assert "nothing was kept" in without["transcript_note"]

    await story.complete(1, 2, 0.5)
    await story.complete(1, 3, 0.5)
    m = story.meta
    await story.batch(1, [m(1, 0, 1.0, 1.0), m(1, 1, 0.0, -1.0), m(1, 2, 0.5, None), m(1, 3, 0.5, None)])
    training = (await show("t1_0"))["training"]
    assert (training["state"], training["advantage"], training["trained_tokens"]) == ("batched", 1.0, 3)
    assert (await show("t1_2"))["training"] | {"note": ""} == {
        "state": "dropped", "reason": "no_signal", "advantage": None, "trained_tokens": 0, "sequences": None,
        "sequences_too_old": None, "note": "",
    }  # fmt: skip
    trainer, fence = story._trainer, story._fence
    await step(await bus_as("trainer"), fence, 1)
    del trainer
    assert (await show("t1_1"))["training"]["state"] in ("batched", "trained")


async def test_why_a_rollout_is_not_trained_is_said(user, job: str, story: Story):
    await story.request(5, oldest=3)
    await story.fail(5, 0)
    await story.complete(5, 1, 1.0)
    await story.complete(5, 2, 1.0)
    await story.complete(5, 3, 0.0)
    m = story.meta
    metas = [
        m(5, 1, 1.0, None),
        m(5, 2, 1.0, 1.0, sampled_tokens=[3, 4], oldest_versions=[2, 2]),
        m(5, 3, 0.0, -1.0, sampled_tokens=[3, 4], oldest_versions=[2, 3]),
    ]
    await story.batch(5, metas)

    async def training(name: str) -> dict[str, Any]:
        return (await user.http.get(f"/api/jobs/{job}/rollouts/{name}")).json()["training"]

    assert (await training("t5_0"))["reason"] == "failed"
    assert (await training("t5_1"))["reason"] == "sibling_failed"
    assert (await training("t5_2"))["reason"] == "too_old"
    partly = await training("t5_3")
    assert (partly["state"], partly["trained_tokens"], partly["sequences_too_old"]) == ("batched", 4, 1)


async def test_a_damaged_header_of_a_batch_is_a_503(user, job: str, story: Story, blobs: BlobStore, bus_as):
    await story.request(1, oldest=0)
    for index, reward in enumerate((1.0, 0.0, 0.5, 0.5)):
        await story.complete(1, index, reward)
    m = story.meta
    await story.batch(1, [m(1, 0, 1.0, 1.25), m(1, 1, 0.0, -1.0), m(1, 2, 0.5, None), m(1, 3, 0.5, None)])
    path = f"/api/jobs/{job}/rollouts/{job}_t1_0"
    await eventually_trained(user, path)
    assert blobs.root is not None
    file = blobs.root / f"jobs/{job}/batches/1"
    body = file.read_bytes()
    file.write_bytes(body.replace(b"1.25", b"1.35", 1))
    reply = await user.http.get(path)
    assert (reply.status_code, "is not what was written" in reply.text) == (503, True), reply.text


async def eventually_trained(user, path: str) -> None:
    """Wait until the read model has the batch."""
    async with asyncio.timeout(30):
        while True:
            if (await user.http.get(path)).json()["training"]["advantage"] == 1.25:
                return
            await asyncio.sleep(0.05)


async def test_what_has_expired_is_said_so(user, job: str, story: Story):
    await story.request(1)
    await story.complete(1, 0, 1.0, transcript=NOWHERE)
    await story.complete(1, 1, 0.0)
    await story.batch(1, [], blob=NOWHERE)
    shown = (await user.http.get(f"/api/jobs/{job}/rollouts/t1_0")).raise_for_status().json()
    assert "has expired" in shown["transcript_note"]
    assert "has expired" in shown["training"]["note"]


async def test_an_evaluation_jobs_rollouts_are_found_without_a_request(user, bus_as, blobs: BlobStore):
    job = (await user.submit())["id"]
    await verify(bus_as, user.org, job, kind="eval")
    story = Story(await bus_as("rollouts"), await bus_as("trainer"), None, blobs, user.org, job)
    for index in range(2):
        await story.complete(0, index, float(index), mode="eval")
    assert await names(user, job) == ["e0_1", "e0_0"]
    assert await names(user, job, iteration=0, sort="best") == ["e0_1", "e0_0"]
    shown = (await user.http.get(f"/api/jobs/{job}/rollouts/e0_1")).raise_for_status().json()
    assert (shown["training"], shown["reward"]) == (None, 1.0)


@pytest.mark.parametrize("path", ["", "/t1_0", "/{job}_t1_0"])
async def test_anothers_rollouts_are_the_same_404_as_none(user, client_of, start_gateway, job: str, story: Story, path):
    await story.request(1)
    await story.complete(1, 0, 1.0)
    stranger = await client_of(await start_gateway())
    path = path.format(job=job)
    theirs = await stranger.http.get(f"/api/jobs/{job}/rollouts{path}")
    nobodys = await stranger.http.get(f"/api/jobs/job_none/rollouts{path}")
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(job, "job_none") == nobodys.text


async def test_what_cannot_be_asked_for_is_refused_with_the_reason(user, job: str, story: Story):
    await story.request(1)
    for name in ("t1_0", "x1_0", "t1", "job_other_t1_0", "t1_0_0", "t" + "9" * 40 + "_0"):
        reply = await user.http.get(f"/api/jobs/{job}/rollouts/{name}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "rollout_not_found"), name
    for query in ({"after": "here"}, {"sort": "random"}, {"limit": 0}, {"iteration": -1}):
        assert (await user.http.get(f"/api/jobs/{job}/rollouts", params=query)).status_code == 422, query

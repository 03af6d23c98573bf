"""Traces through the API: pages of them by every filter, one whole, what expires, and what a deleted job leaves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from synth.blobs import BlobStore
from synth.bus.publish import Publisher
from synth.events import JobValidated, JobVerified, ModelRef, RolloutCompleted, RolloutJudged
from synth.gateway import watchdog
from synth.gateway.commands.expire import expire_traces
from synth.gateway.read_model.tables import traces as read_model
from synth.judging.contract import CriterionScore, Review, RolloutReview
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn
from tests.service.gateway.job_histories import append, begin, succeed
from tests.service.gateway.native.test_rollouts import NOWHERE
from tests.service.gateway.wait import wait_until_shown
from tests.service.jobs import unclaimed


def said(answer: str, *, reward: float = 1.0) -> Transcript:
    turn = TranscriptTurn(
        messages=[{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2?"}],
        reply={"role": "assistant", "content": answer},
        finish_reason="stop",
        prompt_tokens=7,
        sampled_tokens=3,
    )
    steps = [TranscriptStep(obs={"sum": 4}, reward=reward, done=True, after_call=1)]
    return Transcript(turns=[turn], answer=TaskAppAnswer(status=200, steps=steps, metrics={"outcome_score": reward}))


class Jobs:
    """Jobs whose rollouts are kept, as the services tell them."""

    def __init__(self, user: Any, bus_as: Any, blobs: BlobStore) -> None:
        self.user, self.bus_as, self.blobs = user, bus_as, blobs

    async def new(self, *, env: str = "math") -> str:
        job = (await self.user.submit(model="tiny"))["id"]
        rollout = {"env_name": env, "policy_name": "p", "env_config": {"split": "train"}}
        resolved = {"kind": "rl", "model": "tiny", "rollout": rollout}
        validated = JobValidated(job=resolved, origins={}, warnings=[])
        await append(await self.bus_as("validator"), self.user.org, job, validated)
        verified = JobVerified(source=ModelRef(id="tiny", path="tiny"))
        await append(await self.bus_as("verifier"), self.user.org, job, verified)
        return job

    async def complete(self, job: str, index: int, reward: float, *, mode: str = "eval", **changes: Any) -> int:
        body = msgspec.json.encode(changes.pop("transcript", said(str(index), reward=reward)))
        fields: dict[str, Any] = {
            "rollout_id": f"{job}_{mode[0]}0_{index}",
            "iteration": 0,
            "mode": mode,
            "index": index,
            "group": index,
            "seed": 100 + index,
            "reward": reward,
            "trajectory": NOWHERE,
            "completion_tokens": 3,
            "calls": 1,
            "versions": (0, 0),
            "seconds": 0.5,
            "tries": 1,
            "traced": True,
            "transcript": await self.blobs.put_bytes(f"jobs/{job}/rollouts/{mode}/{index}.transcript.json", body),
        }
        event = RolloutCompleted(**fields | changes)
        publisher = Publisher(await self.bus_as("rollouts"))
        seq = await publisher.fenced(event, fence=unclaimed(self.user.org, job), id=event.rollout_id)
        await wait_until_shown(self.user, seq)
        return seq

    async def judge(self, job: str, index: int, **scores: Any) -> None:
        criterion = CriterionScore(score=0.25, reason="It is terse.")
        review = RolloutReview(rollout_id=f"{job}_e0_{index}", outcome=Review(criteria={"tone": criterion}, total=0.25))
        body = await self.blobs.put_bytes(f"jobs/{job}/reviews/{index}", msgspec.json.encode(review))
        event = RolloutJudged(
            rollout_id=f"{job}_e0_{index}", iteration=0, mode="eval", index=index, review=body, **scores
        )
        publisher = Publisher(await self.bus_as("rollouts"))
        seq = await publisher.fenced(event, fence=unclaimed(self.user.org, job), id=f"j{index}")
        await wait_until_shown(self.user, seq)


@pytest.fixture
def jobs(user, bus_as, blobs: BlobStore) -> Jobs:
    return Jobs(user, bus_as, blobs)


async def names(user: Any, **wanted: Any) -> list[str]:
    """The ids without their jobs', of all pages of this query."""
    found: list[str] = []
    params: dict[str, Any] = {"limit": 2} | wanted
    while True:
        page = (await user.http.get("/api/traces", params=params)).raise_for_status().json()
        found += [trace["id"].split("_", 2)[2] for trace in page["data"]]
        assert page["has_more"] == (page["next"] is not None)
        if page["next"] is None:
            return found
        params["after"] = page["next"]


async def test_pages_of_traces_by_every_filter_and_those_that_were_not_kept_are_not_there(
    user, jobs: Jobs, monkeypatch
):
    # A page looks at a stretch of the traces, and a filter may leave nothing of one.
    monkeypatch.setattr(read_model, "_STRETCH", 2)
    a, b = await jobs.new(), await jobs.new(env="crafter")
    for index, reward in enumerate((0.0, 1.0, 0.5)):
        await jobs.complete(a, index, reward)
    await jobs.complete(a, 3, 1.0, traced=False)
    await jobs.complete(b, 0, 0.25)
    await jobs.complete(b, 1, -1.0, mode="train")
    every = ["t0_1", "e0_0", "e0_2", "e0_1", "e0_0"]
    assert await names(user) == every
    assert await names(user, sort="oldest") == every[::-1]
    assert await names(user, job=a) == every[2:]
    assert await names(user, job=[a, b], limit=200) == every
    assert await names(user, mode="train") == ["t0_1"]
    assert await names(user, seed=101) == ["t0_1", "e0_1"]
    assert await names(user, min_reward=0.25, max_reward=0.5) == ["e0_0", "e0_2"]
    assert await names(user, env_name="crafter") == ["t0_1", "e0_0"]
    assert await names(user, model="tiny") == every
    assert await names(user, model="large") == []
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    assert await names(user, since=(now - hour).isoformat(), until=(now + hour).isoformat()) == every
    assert await names(user, since=(now + hour).isoformat()) == []
    assert await names(user, until=(now - hour).replace(tzinfo=None).isoformat()) == []
    for query in ({"after": "x"}, {"limit": 0}, {"min_reward": "nan"}, {"sort": "best"}, {"since": "soon"}):
        assert (await user.http.get("/api/traces", params=query)).status_code == 422, query


async def test_one_trace_has_all_that_was_said_and_earned_and_judged(user, jobs: Jobs):
    job = await jobs.new()
    await jobs.complete(job, 0, 1.0)
    await jobs.judge(job, 0, reward=0.625, environment=1.0, outcome=0.25)
    shown = (await user.http.get(f"/api/traces/{job}_e0_0")).raise_for_status().json()
    assert shown["transcript"]["turns"][0]["reply"] == {"role": "assistant", "content": "0"}
    assert (shown["reward"], shown["environment"], shown["judged_outcome"]) == (0.625, 1.0, 0.25)
    assert shown["review"]["outcome"]["criteria"]["tone"]["reason"] == "It is terse."
    assert (shown["model"], shown["env_name"], shown["env_config"]) == ("tiny", "math", {"split": "train"})
    assert await names(user, max_reward=0.7) == ["e0_0"]
    await jobs.judge(job, 0, reward=None, environment=1.0)

    v3 = (await user.http.get(f"/api/traces/{job}_e0_0", params={"format": "v3"})).raise_for_status().json()
    assert v3["session_id"] == f"{job}_e0_0"
    kinds = [(m["message_type"], m["content"]["text"]) for m in v3["markov_blanket_message_history"]]
    assert kinds == [("system", "Add."), ("user", "2 + 2?"), ("assistant", "0")]
    call, step = v3["event_history"]
    assert (call["output_tokens"], call["call_records"][0]["finish_reason"]) == (3, "stop")
    assert (step["reward"], step["terminated"]) == (1.0, True)
    assert v3["outcome_rewards"][0]["total_reward"] == 1.0
    assert v3["event_rewards"][0]["event"] == 1
    assert v3["metadata"]["judge_scores"] == {"tone": 0.25, "outcome": 0.25}
    assert (v3["metadata"]["task_id"], v3["metadata"]["task_split"]) == ("math", "train")


async def test_a_trace_of_a_thousand_long_turns_is_whole(user, jobs: Jobs):
    turns = [
        TranscriptTurn(
            continues=n - 1 if n else None,
            kept=2 * n,
            messages=[{"role": "user", "content": f"turn {n}"}],
            reply={"role": "assistant", "content": "word " * (20_000 if n == 999 else 20)},
        )
        for n in range(1000)
    ]
    job = await jobs.new()
    await jobs.complete(job, 0, 1.0, transcript=Transcript(turns=turns))
    shown = (await user.http.get(f"/api/traces/{job}_e0_0")).raise_for_status().json()
    assert len(shown["transcript"]["turns"]) == 1000
    assert shown["transcript"]["turns"][-1]["reply"]["content"] == "word " * 20_000
    v3 = (await user.http.get(f"/api/traces/{job}_e0_0", params={"format": "v3"})).raise_for_status().json()
    assert len(v3["markov_blanket_message_history"]) == 2000


async def test_what_is_not_kept_any_longer_expires_oldest_first_once_its_job_has_ended(
    start_gateway, client_of, bus_as, blobs: BlobStore, monkeypatch
):
    models: list[Any] = []
    looked = asyncio.Event()

    async def only_note(model: Any, *_: Any) -> bool:
        models.append(model)
        looked.set()
        return False

    monkeypatch.setattr(watchdog, "expire_traces", only_note)
    running = await start_gateway(traces_per_job=1)
    user = await client_of(running)
    jobs = Jobs(user, bus_as, blobs)
    job = (await user.submit())["id"]
    _, fence = await begin(bus_as, user.org, job)
    for index in range(3):
        await jobs.complete(job, index, 1.0)
    await asyncio.wait_for(looked.wait(), 10)
    model, settings, now = models[0], running.service.settings, datetime.now(UTC)
    assert not await expire_traces(model, blobs, settings, now)
    assert await names(user) == ["e0_2", "e0_1", "e0_0"]
    await wait_until_shown(user, await succeed(await bus_as("trainer"), fence, steps=1) or 0)
    await expire_traces(model, blobs, settings, now)
    assert await names(user) == ["e0_2"]
    gone = (await user.http.get(f"/api/traces/{job}_e0_0")).raise_for_status().json()
    assert (gone["expired"], gone["transcript"]) == (True, None)
    assert "has expired" in gone["note"]
    assert (await user.http.get(f"/api/traces/{job}_e0_0", params={"format": "v3"})).status_code == 410
    assert "has expired" in (await user.http.get(f"/api/jobs/{job}/rollouts/e0_0")).json()["transcript_note"]
    late = settings.model_copy(update={"trace_days": 1.0})
    await expire_traces(model, blobs, late, now + timedelta(days=2))
    assert await names(user) == []
    assert await blobs.uris_below(f"jobs/{job}/rollouts") == []

    assert (await user.http.delete(f"/api/jobs/{job}")).status_code == 200
    assert (await user.http.get(f"/api/traces/{job}_e0_0")).status_code == 404


async def test_anothers_traces_are_the_same_404_as_none(user, client_of, start_gateway, jobs: Jobs):
    job = await jobs.new()
    await jobs.complete(job, 0, 1.0)
    stranger = await client_of(await start_gateway())
    assert await names(stranger) == []
    theirs = await stranger.http.get(f"/api/traces/{job}_e0_0")
    assert theirs.status_code == 404
    assert theirs.text.replace(job, "job_none") == (await stranger.http.get("/api/traces/job_none_e0_0")).text
    assert (await stranger.http.get("/api/traces", params={"job": job})).status_code == 404

"""Submitting, looking at and cancelling jobs."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from synth.bus.history.job_log import append_as_owner, read_job
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.errors import Problem
from synth.events import EvalCompleted, JobCancelled, JobRejected, JobValidated, ModelPublished, ModelRef
from synth.ids import new_job_id
from synth.jobs.lifecycle import State
from tests.service.gateway import job_histories

BODY = {"config": "[model]\nbase = 'tiny'", "config_name": "rl.toml", "seed": 7}


async def test_a_submitted_job_can_be_read_at_once(user):
    job = await user.submit(**BODY, model="tiny")
    assert job["state"] == "created"
    assert job["config"] == BODY["config"]
    assert job["source_model"] == "tiny"
    assert job.pop("repeats") is None
    assert (await user.http.get(f"/api/jobs/{job['id']}")).json() == job


async def test_an_equal_submission_of_the_last_minute_names_the_first_job(start_gateway, client_of):
    running = await start_gateway()
    user, other = [await client_of(running) for _ in range(2)]
    first, _, third = [await user.submit(**body) for body in (BODY, BODY | {"seed": 8}, BODY)]
    assert third["repeats"] == first["id"]
    headers = {"Idempotency-Key": "k"}
    again = [(await user.http.post("/api/jobs", json=BODY, headers=headers)).json() for _ in range(2)]
    assert [job["repeats"] for job in again] == [first["id"], None]
    assert (await other.submit(**BODY))["repeats"] is None


async def test_a_hundred_submits_with_one_key_are_one_job(start_gateway, client_of, bus_as):
    first = await client_of(await start_gateway())
    second = await client_of(await start_gateway(), first.key)
    headers = {"Idempotency-Key": "again"}
    replies = await asyncio.gather(
        *((first, second)[i % 2].http.post("/api/jobs", json=BODY, headers=headers) for i in range(100))
    )
    assert Counter(r.status_code for r in replies) == {201: 1, 200: 99}
    ids = {r.json()["id"] for r in replies}
    assert len(ids) == 1
    assert len(await replay(await bus_as("gateway"), [f"job.created.{first.org}.*"])) == 1


async def test_the_same_key_with_another_body_is_refused(user):
    headers = {"Idempotency-Key": "k"}
    assert (await user.http.post("/api/jobs", json=BODY, headers=headers)).status_code == 201
    reply = await user.http.post("/api/jobs", json=BODY | {"seed": 8}, headers=headers)
    assert reply.status_code == 422
    assert reply.json()["error"]["type"] == "idempotency"


async def test_the_same_key_of_another_organisation_is_another_job(start_gateway, client_of):
    running = await start_gateway()
    users = [await client_of(running) for _ in range(2)]
    headers = {"Idempotency-Key": "k"}
    replies = [await u.http.post("/api/jobs", json=BODY, headers=headers) for u in users]
    assert [r.status_code for r in replies] == [201, 201]
    assert replies[0].json()["id"] != replies[1].json()["id"]


async def test_a_configuration_that_no_event_could_carry_is_refused_with_its_size(user):
    for config in ("#" * 300_000, "\x01" * 60_000):
        reply = await user.http.post("/api/jobs", json=BODY | {"config": config})
        assert reply.status_code == 422
        [problem] = reply.json()["error"]["problems"]
        assert "262144" in problem["what"]
        assert problem["where"] == "body.config"
    assert (await user.http.post("/api/jobs", json=BODY | {"config": "#" * 260_000})).status_code == 201


async def test_a_wrong_body_names_the_field(user):
    reply = await user.http.post("/api/jobs", json={"config": "x", "exampels": 3})
    assert reply.status_code == 422
    body = reply.json()
    assert body["error"]["problems"][0]["where"] == "body.exampels"
    assert body["detail"] == body["error"]["message"]


async def test_a_job_shows_what_its_events_say(start_gateway, client_of, bus_as):
    running = await start_gateway()
    user = await client_of(running)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    rollouts = await bus_as("rollouts")
    for k in (1, 2):
        await job_histories.step(trainer, fence, k, of=2, loss=1.0 / k, reward=k)
    evaluated = EvalCompleted(model="m", instances=3, values={"reward": 0.5}, step=2)
    await Publisher(rollouts).fenced(evaluated, fence=fence, id="e2")
    result = ModelRef(id=f"rl:tiny:{id}")
    await Publisher(trainer).fenced(ModelPublished(model=result, kind="full", step=2), fence=fence, id="m")
    await job_histories.succeed(trainer, fence, steps=2)
    job = await until_state(user, id, "succeeded")
    assert job["kind"] == "rl"
    assert job["tags"] == {"team": "a"}
    assert (job["step"], job["steps"], job["attempt"]) == (2, 2, 1)
    assert job["values"] == {"loss": 0.5, "reward": 2.0}
    assert job["eval"] == {"reward": 0.5}
    assert job["model"] == f"rl:tiny:{id}"
    assert job["warnings"] == ["top_p is off"]
    assert job["resolved"] == job_histories.RESOLVED
    assert job["started_at"] <= job["ended_at"]
    points = (await user.http.get(f"/api/jobs/{id}/metrics")).json()["points"]
    named = [(p["step"], p["name"], p["value"]) for p in points]
    assert named == [
        (1, "loss", 1.0),
        (1, "reward", 1.0),
        (2, "eval.reward", 0.5),
        (2, "loss", 0.5),
        (2, "reward", 2.0),
    ]
    late = (await user.http.get(f"/api/jobs/{id}/metrics", params={"after_step": 1, "name": "loss"})).json()
    assert [(p["step"], p["value"]) for p in late["points"]] == [(2, 0.5)]
    first = (await user.http.get(f"/api/jobs/{id}/metrics", params={"limit": 1})).json()
    assert first["more"]
    assert {p["step"] for p in first["points"]} == {1}


async def test_a_rejected_job_shows_every_problem(user, bus_as):
    id = (await user.submit())["id"]
    problems = [Problem(what="unknown key", where="rl.toml:3"), Problem(what="no model", fix="add [model]")]
    await job_histories.append(await bus_as("validator"), user.org, id, JobRejected(problems=problems))
    job = await until_state(user, id, "rejected")
    assert [p["what"] for p in job["problems"]] == ["unknown key", "no model"]
    assert job["code"] == "rejected"


async def test_a_label_in_the_file_is_the_jobs_name(user, bus_as):
    id = (await user.submit())["id"]
    validated = JobValidated(job={"kind": "rl", "model": "tiny"}, origins={}, warnings=[], name="sums")
    await job_histories.append(await bus_as("validator"), user.org, id, validated)
    assert (await until_state(user, id, "validated"))["name"] == "sums"


async def test_jobs_are_named_and_found_by_their_tags(user, bus_as):
    tagged, other = (await user.submit(**BODY, name="second try"))["id"], (await user.submit())["id"]
    job = {"kind": "rl", "model": "tiny", "tags": {"team": "a", "run": 7, "fresh": True}}
    validated = JobValidated(job=job, origins={}, warnings=[])
    await job_histories.append(await bus_as("validator"), user.org, tagged, validated)
    await job_histories.verify(bus_as, user.org, other)
    await until_state(user, other, "verified")
    assert (await until_state(user, tagged, "validated"))["name"] == "second try"

    async def found(*tags: str) -> list[str]:
        return [j["id"] for j in (await user.http.get("/api/jobs", params={"tag": list(tags)})).json()["data"]]

    assert await found("team=a") == [other, tagged]
    for tags in (("run=7",), ("fresh=true",), ("team=a", "run=7")):
        assert await found(*tags) == [tagged]
    for tags in (("run=8",), ("team=a", "run=8"), ("team=b",), ("team=",), ("run=7' OR 1=1 --",)):
        assert await found(*tags) == []
    for bad in (["team"], ["=a"], ["team=a", "team=b"]):
        reply = await user.http.get("/api/jobs", params={"tag": bad})
        assert reply.status_code == 400
        assert reply.json()["error"]["problems"][0]["where"] == "query tag"


async def test_a_filter_has_a_bounded_number_of_conditions(user):
    for path, name in (("/api/jobs", "tag"), ("/v1/fine_tuning/jobs", "metadata")):
        for conditions, status in ((16, 200), (17, 400), (800, 400)):
            pairs = [f"k{n}" for n in range(conditions)]
            params = {"tag": [f"{p}=v" for p in pairs]} if name == "tag" else {f"metadata[{p}]": "v" for p in pairs}
            reply = await user.http.get(path, params=params)
            assert reply.status_code == status, reply.text
    assert "SYNTH_LIST_CONDITIONS" in reply.text


async def test_rollouts_are_counted(user, bus_as):
    id = (await user.submit())["id"]
    for i in range(3):
        await job_histories.rollout(bus_as, user.org, id, i)
    job = await until(user, id, lambda job: job["rollouts"]["completed"] >= 3)
    assert job["rollouts"] == {"completed": 3, "failed": 0}


async def test_jobs_are_listed_newest_first_by_page_and_state(user, bus_as):
    ids = [(await user.submit())["id"] for _ in range(5)]
    first = (await user.http.get("/api/jobs", params={"limit": 3})).json()
    assert [j["id"] for j in first["data"]] == ids[:1:-1]
    assert first["has_more"]
    rest = (await user.http.get("/api/jobs", params={"limit": 3, "after": ids[2]})).json()
    assert [j["id"] for j in rest["data"]] == ids[1::-1]
    assert not rest["has_more"]
    await user.http.post(f"/api/jobs/{ids[0]}/cancel")
    gone = (await user.http.get("/api/jobs", params={"state": "cancelled"})).json()
    assert [j["id"] for j in gone["data"]] == ids[:1]
    assert (await user.http.get("/api/jobs", params={"state": "jolly"})).status_code == 422


async def test_jobs_are_found_by_the_beginning_of_their_id(user):
    ids = [(await user.submit())["id"] for _ in range(4)]

    async def found(prefix: str) -> list[str]:
        return [j["id"] for j in (await user.http.get("/api/jobs", params={"prefix": prefix})).json()["data"]]

    assert await found("job_") == ids[::-1]
    for id in ids:
        assert await found(id[:12]) == [id]
    assert await found("job_%") == await found("JOB_") == []


async def test_a_job_that_nobody_owns_is_withdrawn(user, bus_as):
    id = (await user.submit())["id"]
    replies = await asyncio.gather(*(user.http.post(f"/api/jobs/{id}/cancel") for _ in range(10)))
    assert {(r.status_code, r.json()["state"]) for r in replies} == {(202, "cancelled")}
    history = await read_job(await bus_as("gateway"), user.org, id)
    assert [f.type for f in history.facts] == ["job.created", "job.withdrawn"]


@pytest.mark.parametrize(("seconds", "asked"), [(600.0, 1), (0.0, 2)], ids=["a double click", "asked again"])
async def test_a_started_job_is_asked_to_stop_and_its_owner_ends_it(user, bus_as, monkeypatch, seconds, asked):
    monkeypatch.setattr("synth.gateway.commands.control._SAME_REQUEST_S", seconds)
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for _ in range(2):
        reply = await user.http.post(f"/api/jobs/{id}/cancel")
        assert (reply.status_code, reply.json()["state"]) == (202, "cancelling")
    await append_as_owner(trainer, fence, lambda _: JobCancelled(step=1))
    await until_state(user, id, "cancelled")
    history = await read_job(trainer, user.org, id)
    assert history.state is State.CANCELLED
    assert [f.type for f in history.facts].count("job.cancel_requested") == asked


async def test_a_finished_job_cannot_be_cancelled(user, bus_as):
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    await job_histories.succeed(trainer, fence, steps=1)
    reply = await user.http.post(f"/api/jobs/{id}/cancel")
    assert reply.status_code == 409
    assert "succeeded" in reply.json()["error"]["message"]


async def test_a_job_that_another_gateway_took_is_found(start_gateway, client_of):
    user = await client_of(await start_gateway())
    other = await client_of(await start_gateway(), user.key)
    for _ in range(10):
        id = (await user.submit())["id"]
        assert (await other.http.get(f"/api/jobs/{id}")).status_code == 200
    assert (await other.http.get(f"/api/jobs/{new_job_id()}")).status_code == 404


async def until_state(user, id: str, state: str) -> dict:
    return await until(user, id, lambda job: job["state"] == state)


async def until(user, id: str, true_of) -> dict:
    """Read the job after each of its events until it is so."""
    async with asyncio.timeout(10):
        headers = {"Accept": "text/event-stream"}
        async with user.http.stream("GET", f"/api/jobs/{id}/events", headers=headers) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("id:"):
                    job = (await user.http.get(f"/api/jobs/{id}")).json()
                    if true_of(job):
                        return job
    raise AssertionError("the stream ended first")

"""The Synth API's jobs, as the published clients poll them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from synth.bus.history.job_log import append_as_owner, append_decided
from synth.bus.publish import Publisher
from synth.errors import Problem
from synth.events import EvalCompleted, FileRejected, JobCancelled, JobRejected, LineProblem, TrainStep
from tests.service.gateway import job_histories
from tests.service.gateway.wait import wait_until_shown
from tests.service.jobs import unclaimed

RL = {
    "job_type": "rl",
    "data": {
        "model": "tiny",
        "endpoint_base_url": "http://task",
        "config": {"rollout": {"env_name": "math"}, "tags": {"a": 1}},
    },
    "metadata": {"who": "me"},
}
SFT = {
    "model": "tiny",
    "training_type": "sft_offline",
    "training_file_id": "file_x",
    "hyperparameters": {"n_epochs": 2},
}
ALIASES = [f"/api{more}/{family}" for more in ("", "/v1", "/api") for family in ("learning", "rl", "orchestration")]


async def create(user, body: dict = RL, headers: dict[str, str] | None = None) -> dict:
    path = "/api/rl/jobs" if "data" in body else "/api/learning/jobs"
    reply = await user.http.post(path, json=body, headers=headers)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def get(user, path: str, **params: object) -> dict:
    reply = await user.http.get(path, params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def evaluated(bus_as, org: str, job: str, *, step: int, **values: float) -> None:
    event = EvalCompleted(model=job, instances=2, values=values, step=step, iteration=step)
    await Publisher(await bus_as("rollouts")).fenced(event, fence=unclaimed(org, job), id=f"e{step}")


async def test_an_rl_job_is_created_with_all_that_clients_read(user):
    job = await create(user)
    assert job["id"] == job["job_id"]
    assert (job["object"], job["job_type"], job["training_type"], job["status"]) == ("job", "rl", "rl_online", "queued")
    assert job["model"] == job["model_id"] == job["base_model"] == "tiny"
    assert job["fine_tuned_model"] is None
    assert job["metadata"] == {"who": "me"}
    assert job["config"]["rollout"] == {"env_name": "math"}
    for alias in ALIASES:
        later = await get(user, f"{alias}/jobs/{job['id']}")
        assert later["queued_seconds"] > job["queued_seconds"]
        assert later | {"queued_seconds": 0} == job | {"queued_seconds": 0}
        started = await user.http.post(f"{alias}/jobs/{job['id']}/start", json={})
        assert (started.status_code, started.json() | {"queued_seconds": 0}) == (200, job | {"queued_seconds": 0})
        status = await get(user, f"{alias}/jobs/{job['id']}/status")
        assert (status["status"], status["execution_time"]) == ("queued", 0)


async def test_a_key_of_the_task_app_that_comes_with_a_job_is_kept_and_not_in_the_log(user, bus_as):
    data = RL["data"] | {"environment_api_key": "env-very-secret"}
    job = await create(user, RL | {"data": data})
    assert len((await get(user, "/api/environment-keys"))["data"]) == 1
    page = await user.http.get(f"/api/jobs/{job['id']}/events")
    assert "env-very-secret" not in page.text
    assert "env-very-secret" not in json.dumps(job)


async def test_a_repeated_create_is_the_same_job_under_every_prefix(user):
    job = await create(user, headers={"Idempotency-Key": "k"})
    again = await user.http.post("/api/v1/rl/jobs", json=RL, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"]) == (200, job["id"])
    other = await user.http.post("/api/rl/jobs", json=RL | {"metadata": {}}, headers={"Idempotency-Key": "k"})
    assert other.status_code == 422
    sft = [
        await user.http.post(p, json=SFT, headers={"Idempotency-Key": "k"})
        for p in ("/api/learning/jobs", "/api/sft/jobs")
    ]
    assert [r.status_code for r in sft] == [201, 200]
    assert sft[0].json()["id"] == sft[1].json()["id"] != job["id"]


async def test_a_body_that_is_no_job_is_a_400_with_a_detail(user):
    for path, body in (("rl", b"[]"), ("learning", b"{"), ("rl", b'{"data": {"config": 3}}')):
        reply = await user.http.post(f"/api/{path}/jobs", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400
        assert reply.json()["detail"]


async def test_a_job_on_a_file_that_failed_is_refused_with_its_lines(user, bus_as):
    file = (await user.http.post("/api/files", files={"file": ("a.jsonl", b"{}")})).json()
    rejected = FileRejected(bad_lines=1, problems=[LineProblem(line=1, path="$", reason="there are no messages")])
    await wait_until_shown(
        user, await Publisher(await bus_as("files")).once(rejected, org=user.org, key=file["id"], id="r")
    )
    reply = await user.http.post("/api/learning/jobs", json=SFT | {"training_file_id": file["id"]})
    assert reply.status_code == 400
    assert "a.jsonl:1 $: there are no messages" in reply.json()["detail"]


async def test_events_are_the_same_under_every_alias_and_go_on_after_a_sequence(user, bus_as):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for index in range(20):
        await job_histories.rollout(bus_as, user.org, id, index)
    seq = await job_histories.step(trainer, fence, 1, loss=0.5, reward_mean=0.25)
    await wait_until_shown(user, seq)
    pages = [await get(user, f"{alias}/jobs/{id}/events", since_seq=0, limit=200) for alias in ALIASES]
    assert all(page == pages[0] for page in pages)
    assert list(pages[0]) == ["events"]
    events = pages[0]["events"]
    assert [e["type"] for e in events] == [
        *("rl.job.created", "rl.job.validated", "rl.job.verified", "rl.train.started", "rl.train.step")
    ]
    assert [e["seq"] for e in events] == sorted({e["seq"] for e in events})
    assert events[-1]["message"] == "step 1 of 100: loss 0.5, reward 0.25"
    assert {e["job_id"] for e in events} == {id}
    # A small page reaches past what is not shown.
    path = f"/api/rl/jobs/{id}/events"
    small = await get(user, path, since_seq=events[3]["seq"], limit=1)
    assert small["events"] == events[4:]
    assert (await get(user, path, since_seq=seq))["events"] == []
    assert (await get(user, path, since=events[2]["event_id"]))["events"] == events[3:]
    assert (await get(user, path, since=events[2]["id"], after=events[3]["id"]))["events"] == events[4:]
    assert (await get(user, path, since=events[3]["timestamp"]))["events"] == events[3:]
    assert (await get(user, path, since="2100-01-01T00:00:00Z"))["events"] == []
    for place in ("yesterday", "nan", "1e300"):
        assert (await user.http.get(path, params={"since": place})).status_code == 400
    for place in ("9999-12-31T23:59:59+00:00", "evt_999999999999999999"):
        assert (await get(user, path, since=place))["events"] == []
    assert (await get(user, path, since="0001-01-01T00:00:00+10:00"))["events"] == events
    assert (await get(user, path, since_seq=10**30))["events"] == []
    assert (await user.http.get(f"/api/jobs/{id}/events", params={"after": 10**30})).status_code == 200
    for after_step in (10**30, -(10**30)):
        for metrics in (f"/api/rl/jobs/{id}/metrics", f"/api/jobs/{id}/metrics"):
            assert (await user.http.get(metrics, params={"after_step": after_step})).status_code == 422


async def test_a_finished_job_shows_its_end_before_its_last_event(user, bus_as):
    id = (await create(user, SFT))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id, kind="sft")
    await job_histories.step(trainer, fence, 1)
    seq = await job_histories.succeed(trainer, fence, steps=1)
    assert seq
    await wait_until_shown(user, seq)
    events = (await get(user, f"/api/learning/jobs/{id}/events"))["events"]
    job = await get(user, f"/api/learning/jobs/{id}")
    assert job["status"] == "succeeded"
    assert job["fine_tuned_model"] == events[-1]["data"]["fine_tuned_model"] == f"rl:tiny:{id}"
    assert job["finished_at"] == events[-1]["created_at"]
    assert [e["type"] for e in events].count("workflow.completed") == 1
    assert events[0]["type"] == "sft.created"


async def test_a_stream_of_events_ends_with_the_job(user, bus_as):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    streamed: list[dict] = []
    async with asyncio.timeout(20):
        async with user.http.stream(
            "GET", f"/api/rl/jobs/{id}/events?since_seq=0", headers={"Accept": "text/event-stream"}
        ) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    streamed.append(json.loads(line.removeprefix("data: ")))
                    if streamed[-1]["type"] == "rl.train.started":
                        await job_histories.rollout(bus_as, user.org, id, 1)
                        await job_histories.step(trainer, fence, 1)
                    if streamed[-1]["type"] == "rl.train.step":
                        await job_histories.succeed(trainer, fence, steps=1)
        assert [e["type"] for e in streamed][-2:] == ["rl.train.step", "rl.job.completed"]
        assert (await get(user, f"/api/rl/jobs/{id}/events"))["events"] == streamed
        again = await user.http.get(
            f"/api/rl/jobs/{id}/events",
            params={"since_seq": streamed[-1]["seq"]},
            headers={"Accept": "text/event-stream"},
        )
        assert again.status_code == 200
        assert "data:" not in again.text


async def follow_metrics(user, id: str, cursor: dict[str, int], *, after: bool) -> list[tuple[str, int]]:
    """One turn of a poller: what it takes from a page, given the last step that it has seen of each name."""
    path = f"/api/learning/jobs/{id}/metrics"
    params = {"after_step": max(cursor.values(), default=-1)} if after else {}
    taken: list[tuple[str, int]] = []
    for point in (await get(user, path, limit=200, **params))["points"]:
        if point["step"] > cursor.get(point["name"], -1):
            cursor[point["name"]] = point["step"]
            taken.append((point["name"], point["step"]))
    return taken


@pytest.mark.parametrize("after", [True, False])
async def test_a_poller_misses_no_point_whenever_an_evaluation_ends(user, bus_as, after):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    cursor, taken = {}, list[tuple[str, int]]()

    async def poll() -> None:
        taken.extend(await follow_metrics(user, id, cursor, after=after))

    await wait_until_shown(user, await job_histories.step(trainer, fence, 1, loss=1.0))
    await poll()
    await wait_until_shown(user, await job_histories.step(trainer, fence, 2, loss=1.0))
    await poll()
    # Of versions 1 and 2, when step 2 is out already; that of version 2 first.
    await evaluated(bus_as, user.org, id, step=2, reward_mean=0.2)
    await evaluated(bus_as, user.org, id, step=1, reward_mean=0.1)
    await poll()
    for k in (3, 4):
        await wait_until_shown(user, await job_histories.step(trainer, fence, k, loss=1.0))
        await poll()
    await evaluated(bus_as, user.org, id, step=4, reward_mean=0.4)
    seq = await job_histories.succeed(trainer, fence, steps=4)
    assert seq
    await wait_until_shown(user, seq)
    await poll()
    assert taken == [
        *(("train.loss", 1), ("train.loss", 2)),
        *(("eval.reward_mean", 3), ("train.loss", 3), ("eval.reward_mean", 4), ("train.loss", 4)),
        ("eval.reward_mean", 5),
    ]
    points = (await get(user, f"/api/rl/jobs/{id}/metrics", name="eval.reward_mean", after_step=0))["points"]
    assert [(p["step"], p["data"]["measured_at_step"], p["value"]) for p in points] == [
        (3, 1, 0.1),
        (4, 2, 0.2),
        (5, 4, 0.4),
    ]
    assert {p["phase"] for p in points} == {"eval"}
    native = (await get(user, f"/api/jobs/{id}/metrics", name="eval.reward_mean"))["points"]
    assert [(p["step"], p["value"]) for p in native] == [(1, 0.1), (2, 0.2), (4, 0.4)]


async def test_steps_that_a_later_attempt_repeats_publish_nothing_in_the_past(user, bus_as):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for k in (1, 2, 3):
        await job_histories.step(trainer, fence, k, loss=1.0)
    await evaluated(bus_as, user.org, id, step=1, reward_mean=0.5)
    again = TrainStep(step=2, of=100, attempt=1, values={"loss": 2.0})
    await Publisher(trainer).fenced(again, fence=fence, id="2 again")
    await wait_until_shown(user, await job_histories.step(trainer, fence, 4, loss=1.0))
    points = (await get(user, f"/api/rl/jobs/{id}/metrics"))["points"]
    assert [(p["name"], p["step"], p["value"]) for p in points] == [
        ("train.loss", 1, 1.0),
        ("train.loss", 2, 2.0),
        ("train.loss", 3, 1.0),
        ("eval.reward_mean", 4, 0.5),
        ("train.loss", 4, 1.0),
    ]


async def test_metrics_are_the_latest_ones_or_those_after_a_step(user, bus_as):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    seq = 0
    for k in range(1, 6):
        seq = await job_histories.step(trainer, fence, k, loss=1 / k, sequences=8.0)
    await wait_until_shown(user, seq)
    path = f"/api/rl/jobs/{id}/metrics"

    async def steps(**params: object) -> list[tuple[str, int]]:
        return [(p["name"], p["step"]) for p in (await get(user, path, **params))["points"]]

    assert await steps(limit=2) == [("train.loss", 4), ("train.loss", 5)]
    assert await steps(limit=2, after_step=-1) == [("train.loss", 1), ("train.loss", 2)]
    assert await steps(after_step=5) == []
    assert await steps(name="train.sequences", limit=1) == [("train.sequences", 5)]


async def test_a_timeline_ends_with_a_status_word_and_has_none_before(user, bus_as):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    await wait_until_shown(user, fence.seq)
    path = f"/api/learning/jobs/{id}/timeline"
    phases = [e["phase"] for e in (await get(user, path))["events"]]
    assert phases == ["created", "validated", "ready", "training"]
    seq = await job_histories.succeed(trainer, fence, steps=1)
    assert seq
    await wait_until_shown(user, seq)
    assert [e["phase"] for e in (await get(user, path))["events"]] == [*phases, "succeeded"]
    assert [e["phase"] for e in (await get(user, path, limit=1))["events"]] == ["succeeded"]
    [run] = (await get(user, f"/api/jobs/{id}/runs"))["runs"]
    assert (run["run_number"], run["status"]) == (1, "succeeded")
    assert run["duration_seconds"] >= 0


async def test_a_cancelled_job_has_the_status_and_no_terminal_event(user, bus_as):
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    before = await get(user, f"/api/learning/jobs/{id}")
    reply = await user.http.post(f"/api/learning/jobs/{id}/cancel")
    assert (reply.status_code, reply.json()["status"]) == (200, "running")
    assert reply.json()["message"]
    _, seq = await append_as_owner(trainer, fence, lambda _: JobCancelled(step=0))
    assert seq
    await wait_until_shown(user, seq)
    job = await get(user, f"/api/learning/jobs/{id}")
    assert job["status"] == "cancelled"
    assert job["updated_at"] > before["updated_at"]
    types = [e["type"] for e in (await get(user, f"/api/rl/jobs/{id}/events"))["events"]]
    assert not any(t.endswith((".completed", ".failed")) for t in types)
    assert (await user.http.post(f"/api/rl/jobs/{id}/cancel")).status_code == 200
    other = (await create(user))["id"]
    reply = await user.http.post(f"/api/sft/jobs/{other}/cancel")
    assert (reply.status_code, reply.json()["status"], reply.json()["message"]) == (
        200,
        "cancelled",
        "the job is cancelled",
    )


async def test_a_rejected_job_has_failed_and_says_why(user, bus_as):
    id = (await create(user))["id"]
    rejected = JobRejected(problems=[Problem(what="bad", where="here")])
    _, seq = await append_decided(await bus_as("validator"), user.org, id, lambda _: rejected)
    assert seq
    await wait_until_shown(user, seq)
    job = await get(user, f"/api/rl/jobs/{id}")
    assert (job["status"], job["error"]) == ("failed", "here: bad")
    last = (await get(user, f"/api/rl/jobs/{id}/events"))["events"][-1]
    assert (last["type"], last["level"], last["data"]["detail"]) == ("rl.job.failed", "error", "here: bad")
    assert (await user.http.post(f"/api/rl/jobs/{id}/cancel")).status_code == 409


async def test_lists_are_filtered_and_go_on_after_a_job(user, bus_as):
    rl = [(await create(user))["id"] for _ in range(3)]
    sft = (await create(user, SFT))["id"]
    await user.http.post(f"/api/rl/jobs/{rl[0]}/cancel")

    async def ids(path: str = "/api/learning/jobs", **params: object) -> list[str]:
        page = await get(user, path, **params)
        assert all(
            {"job_id", "training_type", "status", "created_at", "updated_at", "model_id"} <= set(j)
            for j in page["jobs"]
        )
        return [job["id"] for job in page["jobs"]]

    assert await ids() == [sft, *reversed(rl)]
    assert await ids("/api/v1/rl/jobs") == [*reversed(rl)]
    assert await ids("/api/sft/jobs") == [sft]
    assert await ids(type="sft_offline") == [sft]
    assert await ids(type="dpo") == []
    assert await ids(status="cancelled") == [rl[0]]
    assert await ids(status="queued", type="rl_online", limit=1) == [rl[2]]
    assert await ids(after=rl[2]) == [rl[1], rl[0]]
    assert await ids(file_id="file_x") == [sft]
    assert await ids(model="nobody's") == []
    second = await get(user, f"/api/rl/jobs/{rl[1]}")
    assert await ids(created_after=second["created_at"]) == [sft, rl[2]]
    assert await ids(created_before=second["created_at"]) == [rl[0]]
    assert await ids(created_after=str(int(timedelta(days=365 * 300).total_seconds()))) == []
    assert (await user.http.get("/api/learning/jobs", params={"created_after": "soon"})).status_code == 400


async def test_another_organisation_s_job_is_as_unknown_as_any(start_gateway, client_of):
    running = await start_gateway()
    owner, stranger = await client_of(running), await client_of(running)
    id = (await create(owner))["id"]
    for method, more in (
        *(("GET", more) for more in ("", "/events", "/metrics", "/timeline", "/status", "/config", "/checkpoints")),
        *(("POST", "/start"), ("POST", "/cancel")),
    ):
        for family in ("learning", "rl", "orchestration", "sft"):
            replies = [await stranger.http.request(method, f"/api/{family}/jobs/{i}{more}") for i in (id, "job_none")]
            assert [r.status_code for r in replies] == [404, 404]
            assert replies[0].text.replace(id, "job_none") == replies[1].text
    assert (await stranger.http.get(f"/api/jobs/{id}/runs")).status_code == 404
    assert (await get(stranger, "/api/learning/jobs"))["jobs"] == []

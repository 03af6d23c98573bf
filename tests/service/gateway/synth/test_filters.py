"""What the Synth API's clients ask to be left out: attempts, moments, files and models; and what is said to garbage."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from synth.bus.history.job_log import append_as_owner, start_attempt
from synth.bus.publish import Publisher
from synth.events import BlobRef, CheckpointSaved, JobCreated, JobPaused, ModelPublished, ModelRef
from synth.ids import new_job_id
from tests.service.gateway import job_histories
from tests.service.gateway.synth.test_jobs import RL, SFT, create, get
from tests.service.gateway.wait import wait_until_shown


async def twice_started(user, bus_as) -> str:
    """A job of two attempts: steps 1 and 2 in the first, 3 in the second."""
    id = (await create(user, SFT))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id, kind="sft")
    for k in (1, 2):
        await job_histories.step(trainer, fence, k)
    await user.http.post(f"/api/jobs/{id}/pause")
    await append_as_owner(trainer, fence, lambda _: JobPaused(step=2))
    await user.http.post(f"/api/jobs/{id}/resume")
    _, again = await start_attempt(trainer, user.org, id, worker="w", term=1)
    assert again is not None
    await job_histories.step(trainer, again, 3)
    await wait_until_shown(user, await job_histories.succeed(trainer, again, steps=3) or 0)
    return id


async def test_a_job_that_has_not_started_has_no_run(user):
    id = (await create(user))["id"]
    for what in ("events", "metrics"):
        unknown = await user.http.get(f"/api/rl/jobs/{id}/{what}", params={"run": "1"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "run_not_found")


@pytest.mark.parametrize("word", ["run", "run_id"])
async def test_an_attempt_s_events_and_metrics_are_told_apart(user, bus_as, word):
    id = await twice_started(user, bus_as)
    runs = (await get(user, f"/api/jobs/{id}/runs"))["runs"]
    assert [(run["run_number"], run["status"]) for run in runs] == [(1, "interrupted"), (2, "succeeded")]
    for name, steps, first, last in (
        (1, [1, 2], "sft.training.started", "sft.resumed"),
        (runs[1]["id"], [3], "sft.training.started", "workflow.completed"),
    ):
        points = (await get(user, f"/api/learning/jobs/{id}/metrics", name="train.loss", **{word: name}))["points"]
        assert [point["step"] for point in points] == steps
        events = (await get(user, f"/api/learning/jobs/{id}/events", **{word: name}))["events"]
        assert [events[0]["type"], events[-1]["type"]] == [first, last]
        headers = {"Accept": "text/event-stream"}
        stream = await user.http.get(f"/api/rl/jobs/{id}/events", params={word: name}, headers=headers)
        assert stream.text.count("data: ") == len(events)
    for what in ("events", "metrics"):
        for name in ("3", "0", "x", f"{id}:٢"):
            unknown = await user.http.get(f"/api/learning/jobs/{id}/{what}", params={word: name})
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "run_not_found")


async def test_a_stream_begins_at_the_moment_that_is_asked_for(user, bus_as):
    id = await twice_started(user, bus_as)
    events = (await get(user, f"/api/rl/jobs/{id}/events"))["events"]
    params, headers = {"since": events[-2]["created_at"]}, {"Accept": "text/event-stream"}
    stream = await user.http.get(f"/api/rl/jobs/{id}/events", params=params, headers=headers)
    assert stream.text.count("data: ") == 2


async def test_jobs_are_found_by_a_model_or_a_file_however_many_came_since(user, bus_as):
    id = (await create(user, SFT | {"training_file_id": "file_old"}))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id, kind="sft")
    tree = BlobRef(uri="blob://t", size=1, sha256="0")
    made, saved = f"fft:tiny:{id}", f"fft:tiny:{id}:step_5"
    checkpoint = CheckpointSaved(step=5, version=5, attempt=1, tree=tree, size=1, model=ModelRef(id=saved, tree=tree))
    await Publisher(trainer).fenced(checkpoint, fence=fence, id="c")
    published = ModelPublished(model=ModelRef(id=made, tree=tree), kind="full", step=5)
    await Publisher(trainer).fenced(published, fence=fence, id="m")
    child = (await create(user, SFT | {"model": saved}))["id"]
    other = JobCreated(config="", config_name="rl.toml", body_sha256="")
    gateway = Publisher(await bus_as("gateway"))
    last = 0
    for _ in range(3):
        new = [
            gateway.lifecycle(other, org=user.org, key=new_job_id(), id=uuid.uuid4().hex, after=0) for _ in range(100)
        ]
        last = max(await asyncio.gather(*new))
    await wait_until_shown(user, last)

    async def ids(**params: object) -> list[str]:
        return [job["id"] for job in (await get(user, "/api/learning/jobs", **params))["jobs"]]

    assert await ids(file_id="file_old") == [id]
    assert await ids(model=made) == [id]
    assert await ids(model=saved) == [child, id]
    assert await ids(model=saved, file_id="file_old") == [id]
    assert await ids(created_before=(await get(user, f"/api/sft/jobs/{child}"))["created_at"]) == [id]
    page = (await user.http.get(f"/api/models/{saved}/jobs")).json()["data"]
    assert [job["id"] for job in page] == [child, id]


async def test_checkpoints_go_on_after_one_that_is_there(user, bus_as):
    id = (await create(user, RL))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for k in (1, 2):
        tree = BlobRef(uri=f"blob://{k}", size=1, sha256="0")
        ref = ModelRef(id=f"rl:tiny:{id}:step_{k}", tree=tree)
        saved = CheckpointSaved(step=k, version=k, attempt=1, tree=tree, size=1, model=ref)
        await wait_until_shown(user, await Publisher(trainer).fenced(saved, fence=fence, id=str(k)))
    for path in (f"/api/rl/jobs/{id}/checkpoints", f"/v1/fine_tuning/jobs/{id}/checkpoints"):
        first = await get(user, path, limit=1)
        rest = await get(user, path, after=first["data"][0]["id"])
        assert [first["has_more"], rest["has_more"]] == [True, False]
        assert len(rest["data"]) == 1
        gone = await user.http.get(path, params={"after": "of another job"})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "checkpoint_not_found")
        assert "synthctl" not in gone.json()["detail"]


async def test_every_listing_names_the_base_and_the_stand_in_of_what_a_job_made(user, bus_as):
    id = (await create(user, SFT))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id, kind="sft")
    tree = BlobRef(uri="blob://t", size=1, sha256="0")
    made, saved = f"fft:Qwen/Qwen3-0.6B:{id}", f"fft:Qwen/Qwen3-0.6B:{id}:step_5"
    refs = [ModelRef(id=name, tree=tree, stand_in="tiny") for name in (made, saved)]
    await Publisher(trainer).fenced(ModelPublished(model=refs[0], kind="full", step=5), fence=fence, id="m")
    checkpoint = CheckpointSaved(step=5, version=5, attempt=1, tree=tree, size=1, model=refs[1])
    await wait_until_shown(user, await Publisher(trainer).fenced(checkpoint, fence=fence, id="c"))
    for name in (made, saved):
        theirs = await get(user, f"/api/v1/learning/models/{name}")
        assert (theirs["id"], theirs["base_model"], theirs["stand_in"]) == (name, "Qwen/Qwen3-0.6B", "tiny")
        ours = await get(user, f"/api/models/{name}")
        assert (ours["base"], ours["stand_in"]) == ("Qwen/Qwen3-0.6B", "tiny")
    for listed in (
        await get(user, "/api/learning/models"),
        await get(user, "/api/models", base_model="Qwen/Qwen3-0.6B"),
    ):
        assert [model["id"] for model in listed["data"]] == [made]
    assert (await get(user, "/api/learning/models"))["models"][0]["base_model"] == "Qwen/Qwen3-0.6B"
    assert (await get(user, "/api/learning/models/rl"))["data"] == []


async def test_models_go_on_after_one_and_end(user, bus_as):
    id = (await create(user, RL))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    names = [f"{prefix}:tiny:{id}" for prefix in ("rl", "peft", "fft")]
    for name in names:
        published = ModelPublished(model=ModelRef(id=name), kind="full", step=5)
        await wait_until_shown(user, await Publisher(trainer).fenced(published, fence=fence, id=name))
    for path in ("/api/models", "/api/learning/models"):
        found, after, more = [], {}, True
        while more:
            page = await get(user, path, limit=1, **after)
            found += [model["id"] for model in page["data"]]
            after, more = {"after": found[-1]}, page["has_more"]
        assert found[:3] == names[::-1]
        assert len(found) == len(set(found))
        assert (await user.http.get(path, params={"after": "nobody's"})).status_code == 404
    assert [model["id"] for model in (await get(user, "/api/learning/models/rl"))["data"]] == names[:1]


async def test_what_came_of_a_job_is_in_the_part_of_it_that_a_client_prints(user):
    job = await create(user)
    assert list(job)[:6] == ["id", "job_id", "status", "error", "fine_tuned_model", "warnings"]


async def test_a_route_that_is_not_there_says_where_all_of_them_are(user):
    missing = await user.http.get("/api/prompt-learning/online/jobs")
    assert missing.status_code == 404
    assert "there is no route GET /api/prompt-learning/online/jobs" in missing.json()["detail"]
    assert "/openapi.json" in missing.json()["detail"]
    for method in ("PUT", "OPTIONS", "HEAD"):
        refused = await user.http.request(method, "/api/learning/models")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b'{"config": ', "application/json", "the body is not JSON: "),
        (b"\xff\xfe", "application/json", "the body is not JSON: "),
        (b"[]", "application/json", "the body is no JSON object"),
        (b"", "application/json", "the body is no JSON object"),
        (b'{"config": "x"}', "text/plain", "Content-Type: application/json"),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_why(user, content, kind, said):
    for path in ("/api/jobs", "/v1/fine_tuning/jobs", "/api/rl/verify_task_app"):
        refused = await user.http.post(path, content=content, headers={"Content-Type": kind})
        assert refused.status_code in (400, 422)
        assert said in refused.json()["detail"]
        assert refused.json()["error"]["param"] is None


async def test_what_one_gateway_took_the_other_knows(start_gateway, client_of):
    one = await client_of(await start_gateway())
    other = await client_of(await start_gateway(), one.key)
    for _ in range(5):
        id = (await create(one))["id"]
        assert (await get(other, f"/api/rl/jobs/{id}"))["id"] == id
        assert (await get(other, f"/api/learning/jobs/{id}/events"))["events"][0]["type"] == "rl.job.created"
        cancelled = await other.http.post(f"/api/rl/jobs/{id}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert (await one.http.post(f"/api/rl/jobs/{id}/cancel")).json()["status"] == "cancelled"

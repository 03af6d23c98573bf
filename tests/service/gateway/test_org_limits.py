"""What one organisation may take: each limit is a 429 that says how much, until when, and how to have it raised."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import httpx
import pytest

from synth.bus.history.job_log import append_as_owner
from synth.bus.publish import Publisher
from synth.bus.replay import follow
from synth.errors import UserError
from synth.events import FileRejected, JobPaused, JobPauseRequested
from tests.service.gateway.conftest import Client
from tests.service.gateway.job_histories import begin
from tests.service.gateway.raw_http import PATIENCE_S, connect
from tests.service.gateway.wait import wait_until_shown

STREAM = {"Accept": "text/event-stream"}


def assert_refused(reply: httpx.Response, policy: str, setting: str) -> None:
    """In the shape of every error, which is also the openai SDK's and the synth-ai client's."""
    assert reply.status_code == 429, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit", f"{policy}_limit")
    assert setting in error["message"]
    assert reply.json()["detail"] == error["message"]
    assert int(reply.headers["Retry-After"]) > 0
    assert reply.headers["RateLimit"].startswith(f'"{policy}";r=0;t=')
    assert reply.headers["RateLimit-Policy"].startswith(f'"{policy}";q=')


async def test_requests_beyond_the_burst_are_told_when_to_come_again(start_gateway, client_of):
    running = await start_gateway(org_request_burst=5, org_requests_per_s=0.01)
    user, other = await client_of(running), await client_of(running)
    left = [(await user.http.get("/api/jobs")).headers["RateLimit"] for _ in range(5)]
    assert [text.split(";")[1] for text in left] == ["r=4", "r=3", "r=2", "r=1", "r=0"]
    for path in ("/api/jobs", "/v1/fine_tuning/jobs", "/api/models"):
        assert_refused(await user.http.get(path), "requests", "SYNTH_ORG_REQUESTS_PER_S")
    chat = {"model": "m", "messages": []}
    assert_refused(await user.http.post("/v1/chat/completions", json=chat), "requests", "SYNTH_ORG_REQUESTS_PER_S")
    assert (await other.http.get("/api/jobs")).status_code == 200


def left(reply: httpx.Response) -> dict[str, str]:
    """What is left of each limit that a request met, by name."""
    assert reply.is_success, reply.text
    listed = [entry.split(";") for entry in reply.headers["RateLimit"].split(", ")]
    policies = [entry.split(";")[0] for entry in reply.headers["RateLimit-Policy"].split(", ")]
    assert policies == [entry[0] for entry in listed]
    return {entry[0].strip('"'): entry[1] for entry in listed}


async def test_each_limited_route_names_what_is_left_of_its_limits(start_gateway, client_of):
    user = await client_of(
        await start_gateway(org_jobs_queued=3, org_jobs_live=5, org_uploads=4, org_file_bytes=10_000, org_streams=7)
    )
    job = await user.http.post("/api/jobs", json={"config": "[job]"})
    assert left(job).items() >= {"jobs_queued": "r=2", "jobs_live": "r=4"}.items()
    assert left(await user.http.post("/api/jobs", json={"config": "[job]"}))["jobs_queued"] == "r=1"
    uploaded = await user.http.post("/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "fine-tune"})
    assert left(uploaded).items() >= {"uploads": "r=3", "file_bytes": "r=9997", "files_pending": "r=499"}.items()
    async with user.http.stream("GET", "/api/events", headers=STREAM) as stream:
        assert left(stream)["event_streams"] == "r=6"
    read = await user.http.get("/v1/models")
    assert list(left(read)) == ["requests"]
    # As the openai SDK shows them.
    assert read.headers["x-ratelimit-limit-requests"] == "5000"
    assert 0 < int(read.headers["x-ratelimit-remaining-requests"]) < 5000
    assert read.headers["x-ratelimit-reset-requests"] == "1s"


async def test_one_organisation_may_have_limits_of_its_own(start_gateway, client_of):
    user = await client_of(await start_gateway())
    strict = await start_gateway(org_limits={user.org: {"request_burst": 1, "requests_per_s": 0.01}})
    limited, other = await client_of(strict, user.key), await client_of(strict)
    assert (await limited.http.get("/api/jobs")).status_code == 200
    assert_refused(await limited.http.get("/api/jobs"), "requests", "SYNTH_ORG_REQUESTS_PER_S")
    assert [(await other.http.get("/api/jobs")).status_code for _ in range(3)] == [200] * 3


async def test_an_organisation_reads_its_limits_and_what_it_uses(start_gateway, client_of):
    running = await start_gateway(org_jobs_queued=2, org_gpu_seconds=None, org_requests_per_s=0.01)
    user, other = await client_of(running), await client_of(running)

    async def used(client: Client) -> dict[str, tuple[float, float | None]]:
        listed = (await client.http.get("/api/limits")).json()
        assert listed["org"] == client.org
        return {limit["name"]: (limit["used"], limit["limit"]) for limit in listed["data"]}

    before = await used(user)
    assert before["jobs_queued"] == (0, 2)
    assert before["gpu_seconds"] == (0, None)
    await user.submit()
    uploaded = await user.http.post("/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "fine-tune"})
    assert uploaded.status_code == 200, uploaded.text
    after = await used(user)
    assert (after["jobs_queued"], after["jobs_live"][0]) == ((1, 2), 1)
    assert (after["file_bytes"][0], after["files_pending"][0]) == (3, 1)
    assert after["request_burst"][0] > 0
    assert (await used(other))["jobs_queued"] == (0, 2)


async def test_a_limit_that_is_none_is_refused_at_the_start(start_gateway):
    with pytest.raises(UserError, match="jobs"):
        await start_gateway(org_limits={"org_x": {"jobs": 5}})


async def test_jobs_that_nobody_has_started_have_a_bound_on_every_route(start_gateway, client_of):
    user = await client_of(await start_gateway(org_jobs_queued=2))
    first = await user.submit()
    await user.submit()
    refused = await user.http.post("/api/jobs", json={"config": "[job]"})
    assert_refused(refused, "jobs_queued", "SYNTH_ORG_JOBS_QUEUED")
    # Coming again does not help by itself, so the published clients do not.
    assert refused.headers["X-Should-Retry"] == "false"
    rl = {"data": {"config": {}, "model": "m", "endpoint_base_url": "http://127.0.0.1:1"}}
    assert_refused(await user.http.post("/api/rl/jobs", json=rl), "jobs_queued", "SYNTH_ORG_JOBS_QUEUED")
    assert (await user.http.post(f"/api/jobs/{first['id']}/cancel")).status_code == 202
    assert (await user.http.post("/api/jobs", json={"config": "[job]"})).status_code == 201


async def test_the_same_submission_again_is_no_further_job(start_gateway, client_of):
    user = await client_of(await start_gateway(org_jobs_live=1))
    body, key = {"config": "[job]"}, {"Idempotency-Key": "once"}
    assert (await user.http.post("/api/jobs", json=body, headers=key)).status_code == 201
    assert (await user.http.post("/api/jobs", json=body, headers=key)).status_code == 200
    assert_refused(await user.http.post("/api/jobs", json=body), "jobs_live", "SYNTH_ORG_JOBS_LIVE")


async def test_gpu_seconds_have_a_bound_that_pauses_what_runs_and_lets_nothing_begin(bus_as, start_gateway, client_of):
    plenty = await client_of(await start_gateway())
    running = await start_gateway(org_gpu_seconds=10**9, org_limits={plenty.org: {"gpu_seconds": 0.5, "gpu_days": 2}})
    user, other = await client_of(running, plenty.key), await client_of(running)
    job, theirs = (await user.submit())["id"], (await other.submit())["id"]
    trainer, fence = await begin(bus_as, user.org, job, devices=4)
    await begin(bus_as, other.org, theirs, devices=4)
    async with asyncio.timeout(30), aclosing(follow(trainer, [f"job.pause_requested.*.{job}"])) as asked:
        request = (await anext(asked)).event
    assert isinstance(request, JobPauseRequested)
    assert "SYNTH_ORG_GPU_SECONDS" in request.reason
    refused = await user.http.post("/api/jobs", json={"config": "[job]"})
    assert_refused(refused, "gpu_seconds", "SYNTH_ORG_GPU_SECONDS")
    assert "GPU-seconds in 2 days" in refused.json()["detail"]
    _, seq = await append_as_owner(trainer, fence, lambda _: JobPaused(step=0, reason=request.reason))
    assert seq is not None
    await wait_until_shown(user, seq)
    assert_refused(await user.http.post(f"/api/jobs/{job}/resume"), "gpu_seconds", "SYNTH_ORG_GPU_SECONDS")
    assert (await other.http.get(f"/api/jobs/{theirs}")).json()["state"] == "started"
    assert (await other.http.post("/api/jobs", json={"config": "[job]"})).status_code == 201
    # What says no limit has none.
    assert (await plenty.http.post(f"/api/jobs/{job}/resume")).status_code == 202


async def test_files_have_a_bound_in_bytes_and_a_deleted_one_gives_its_back(start_gateway, client_of):
    user = await client_of(await start_gateway(org_file_bytes=1000))
    first = await user.http.post("/api/files", files={"file": ("a.jsonl", b"a" * 600)})
    assert first.status_code == 201
    second = await user.http.post("/api/files", files={"file": ("b.jsonl", b"b" * 600)})
    assert_refused(second, "file_bytes", "SYNTH_ORG_FILE_BYTES")
    assert (await user.http.delete(f"/api/files/{first.json()['id']}")).status_code == 200
    assert (await user.http.post("/api/files", files={"file": ("b.jsonl", b"b" * 600)})).status_code == 201


async def test_files_that_are_not_checked_yet_have_a_bound(bus_as, start_gateway, client_of):
    running = await start_gateway(org_files_pending=1)
    user, other = await client_of(running), await client_of(running)
    first = await user.http.post("/api/files", files={"file": ("a.jsonl", b"a")})
    assert first.status_code == 201
    second = await user.http.post("/api/files", files={"file": ("b.jsonl", b"b")})
    assert_refused(second, "files_pending", "SYNTH_ORG_FILES_PENDING")
    assert (await other.http.post("/api/files", files={"file": ("b.jsonl", b"b")})).status_code == 201
    checked, id = FileRejected(bad_lines=0, problems=[]), first.json()["id"]
    await Publisher(await bus_as("files")).once(checked, org=user.org, key=id, id="checked")
    async with asyncio.timeout(PATIENCE_S):
        while second.status_code == 429:
            second = await user.http.post("/api/files", files={"file": ("b.jsonl", b"b")})
    assert second.status_code == 201


async def test_uploads_at_a_time_have_a_bound(start_gateway, client_of):
    user = await client_of(await start_gateway(org_uploads=1))
    head = ["POST /api/files HTTP/1.1", "Host: here", f"Authorization: Bearer {user.key}", "Content-Length: 100000"]
    reader, writer = await connect(str(user.http.base_url))
    writer.write("\r\n".join([*head, "Content-Type: multipart/form-data; boundary=b", "", ""]).encode())
    file = {"file": ("a.jsonl", b"a")}
    reply = await user.http.post("/api/files", files=file)
    while reply.status_code == 201:
        reply = await user.http.post("/api/files", files=file)
    assert_refused(reply, "uploads", "SYNTH_ORG_UPLOADS")
    writer.close()
    async with asyncio.timeout(PATIENCE_S):
        while reply.status_code == 429:
            reply = await user.http.post("/api/files", files=file)
    assert reply.status_code in (200, 201)
    del reader


async def test_streams_have_a_bound_and_a_closed_one_gives_its_place_back(start_gateway, client_of):
    user = await client_of(await start_gateway(org_streams=2))
    job = await user.submit()
    paths = ["/api/events", f"/api/jobs/{job['id']}/events"]
    opened = [user.http.stream("GET", path, headers=STREAM) for path in paths]
    for stream in opened:
        assert (await stream.__aenter__()).status_code == 200
    assert_refused(await user.http.get("/api/events", headers=STREAM), "event_streams", "SYNTH_ORG_STREAMS")
    for stream in opened:
        await stream.__aexit__(None, None, None)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with user.http.stream("GET", "/api/events", headers=STREAM) as reply:
                if reply.status_code == 200:
                    return


async def test_keys_of_each_kind_have_a_bound(start_gateway, client_of):
    user: Client = await client_of(await start_gateway(org_keys=2))
    made = await user.http.post("/api/keys", json={})
    assert made.status_code == 201
    assert_refused(await user.http.post("/api/keys", json={}), "keys", "SYNTH_ORG_KEYS")
    assert (await user.http.delete(f"/api/keys/{made.json()['id']}")).status_code == 200
    assert (await user.http.post("/api/keys", json={})).status_code == 201
    for key in ("one", "two"):
        assert (await user.http.post("/api/environment-keys", json={"key": key})).status_code == 201
    assert_refused(await user.http.post("/api/environment-keys", json={"key": "three"}), "keys", "SYNTH_ORG_KEYS")
    # The same one again is no further one.
    assert (await user.http.post("/api/environment-keys", json={"key": "two"})).status_code == 201

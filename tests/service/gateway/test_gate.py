"""How much of a request the gateway takes in before it says no."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from synth.bus.kv.replicas import Replica, announce
from synth.keys import Cid, mint_cid
from tests.keyrings import credentials
from tests.loop_gaps import RecordProperty, check_gaps
from tests.service.gateway.conftest import Client
from tests.service.gateway.raw_http import PATIENCE_S, connect

LIMIT = 100_000


@pytest.fixture
async def user(start_gateway, client_of) -> Client:
    return await client_of(await start_gateway(max_json_bytes=LIMIT))


async def unmeasured() -> AsyncIterator[bytes]:
    for _ in range(64):
        yield b" " * 65536


async def test_a_body_that_says_how_large_it_is_is_refused_before_it_is_read(user: Client):
    reply = await user.http.post("/api/jobs", content=b" " * (LIMIT + 1))
    assert reply.status_code == 413
    assert "larger than 100,000 bytes" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/api/jobs", "/v1/fine_tuning/jobs"])
async def test_a_body_that_does_not_say_it_is_refused_where_it_passes_the_limit(user: Client, path: str):
    reply = await user.http.post(path, content=unmeasured(), headers={"Content-Type": "application/json"})
    assert reply.status_code == 413
    assert "larger than 100,000 bytes" in reply.json()["detail"]


async def test_a_body_within_the_limit_is_read(user: Client):
    reply = await user.http.post("/api/jobs", json={"config": " " * (LIMIT - 100)})
    assert reply.status_code == 201


async def test_the_name_of_a_chats_model_is_short(user: Client):
    reply = await user.http.post("/v1/chat/completions", json={"model": "ft:" + "x" * 600, "messages": []})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert "more than 512 characters" in reply.json()["error"]["message"]


async def test_a_file_and_a_chat_have_limits_of_their_own(user: Client):
    large = b"x" * (LIMIT * 2)
    assert (await user.http.post("/api/files", files={"file": ("a.jsonl", large)})).status_code == 201
    chat = {"model": "nothing", "messages": [{"role": "user", "content": large.decode()}]}
    assert (await user.http.post("/v1/chat/completions", json=chat)).status_code != 413


@pytest.mark.parametrize("path", ["/api/jobs", "/v1/fine_tuning/jobs", "/api/files", "/v1/chat/completions", "/api/x"])
async def test_who_has_no_key_is_told_before_a_byte_of_the_body_is_awaited(user: Client, path: str):
    lines = [f"POST {path} HTTP/1.1", "Host: here", "Content-Type: application/json", "Content-Length: 50000"]
    reader, writer = await connect(str(user.http.base_url))
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401")


async def test_bodies_together_have_a_bound_and_one_organisation_has_half_of_it(start_gateway, client_of):
    running = await start_gateway(http_buffered_bytes=1 << 20)
    greedy, other = await client_of(running), await client_of(running)
    lines = ["POST /api/jobs HTTP/1.1", "Host: here", f"Authorization: Bearer {greedy.key}", "Content-Length: 500000"]
    reader, writer = await connect(running.service.url)
    writer.write("\r\n".join([*lines, "", ""]).encode() + b" " * 499_999)
    large = {"config": " " * 200_000}
    reply = await greedy.http.post("/api/jobs", json=large)
    while reply.status_code == 201:
        # Until the gateway has read the half-sent one.
        reply = await greedy.http.post("/api/jobs", json=large)
    assert reply.status_code == 503
    assert int(reply.headers["Retry-After"]) > 0
    assert "SYNTH_HTTP_BUFFERED_BYTES" in reply.json()["detail"]
    assert (await other.http.post("/api/jobs", json=large)).status_code == 201
    writer.write(b" ")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).startswith(b"HTTP/1.1 4")
    assert (await greedy.http.post("/api/jobs", json=large)).status_code == 201
    writer.close()


async def test_calls_of_rollouts_count_in_the_memory_of_their_jobs_organisation(start_gateway, client_of, bus_as):
    running = await start_gateway(http_buffered_bytes=1 << 20)
    greedy, other = await client_of(running), await client_of(running)
    recorder = Replica(id="memory", boot="1", url="http://127.0.0.1:1", pool="default", models=[])
    announcing = asyncio.create_task(announce(await bus_as("inference"), lambda: recorder, asyncio.Event()))

    async def path(user: Client) -> str:
        """Of a chat in a rollout of a new job."""
        job = (await user.submit())["id"]
        cid = Cid(
            rollout_id=f"{job}_1_0", nonce=1, replica="memory-1", version=None, calls=9, ends=2**40, expires=2**40
        )
        return f"/v1/chat/completions?cid={mint_cid(cid, credentials())}"

    async def chat(user: Client) -> httpx.Response:
        return await user.http.post(await path(user), content=b" " * 200_000)

    _, writer = await connect(running.service.url)
    lines = [f"POST {await path(greedy)} HTTP/1.1", "Host: here", "Content-Length: 500000"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + b" " * 499_999)
    async with asyncio.timeout(PATIENCE_S):
        # Until the gateway has heard of the replica, and has read the half-sent one.
        while "SYNTH_HTTP_BUFFERED_BYTES" not in (reply := await chat(greedy)).text:
            assert "memory" in reply.text
    # The replica is not there: what it says is that it cannot be reached.
    assert "cannot be reached" in (await chat(other)).text
    writer.close()
    announcing.cancel()


@pytest.mark.parametrize("boundary", ["b" * 300, "b" * 5000, '"', "ü", ""])
async def test_a_boundary_that_is_none_is_refused(user: Client, boundary: str):
    headers = {b"Content-Type": f"multipart/form-data; boundary={boundary}".encode()}
    reply = await user.http.post("/api/files", content=b"--b\r\n\r\n", headers=headers)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["problems"]


async def test_a_form_with_endless_headers_is_refused(user: Client):
    form = b'--b\r\nContent-Disposition: form-data; name="' + b"n" * 100_000
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert (await user.http.post("/api/files", content=form, headers=headers)).status_code == 400


@pytest.mark.parametrize("path", ["/api/jobs/", "/api/models//", "/api/me/"])
async def test_a_slash_at_the_end_of_a_path_does_not_count(user: Client, path: str):
    reply = await user.http.get(path, headers={"Host": "elsewhere.example"})
    assert reply.status_code == 200
    assert "location" not in reply.headers


async def test_a_large_body_of_many_wrong_fields_is_refused_with_the_first_ones(
    start_gateway, client_of, record_property: RecordProperty
):
    user = await client_of(await start_gateway())
    body = json.dumps({"config": "a", **{f"f{i}": 0 for i in range(40_000)}})

    async def send() -> httpx.Response:
        return await user.http.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})

    await send()
    reply = await check_gaps(send, record_property, "gateway", "a body of unknown fields")
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (422, "f0")
    assert (len(error["problems"]), error["problems"][-1]["what"]) == (101, "and 39,900 more problems")

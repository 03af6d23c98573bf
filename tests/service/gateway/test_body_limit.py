"""How much of a request the gateway takes in before it says no."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.service.gateway.conftest import Client

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


async def test_a_file_and_a_chat_have_limits_of_their_own(user: Client):
    large = b"x" * (LIMIT * 2)
    assert (await user.http.post("/api/files", files={"file": ("a.jsonl", large)})).status_code == 201
    chat = {"model": "nothing", "messages": [{"role": "user", "content": large.decode()}]}
    assert (await user.http.post("/v1/chat/completions", json=chat)).status_code != 413

"""Clients that send half a request and wait, or one byte a second: each costs a socket for some seconds, no more."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.gateway.conftest import Client
from tests.service.gateway.raw_http import PATIENCE_S, connect, exchange, read_to_end, status_of

HALVES = 300


@pytest.fixture
async def user(start_gateway, client_of) -> Client:
    quick = {"org_uploads": HALVES, "http_header_s": 1.0, "http_body_window_s": 1.0, "http_body_bytes_per_s": 100}
    return await client_of(await start_gateway(**quick))


def head(user: Client, *more: str, path: str = "/api/jobs", key: str | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Authorization: Bearer {key or user.key}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_half_sent_requests_are_all_ended(user: Client):
    url = str(user.http.base_url)
    begun = [
        b"POST /api/jobs HTT",
        b"POST /api/jobs HTTP/1.1\r\nHost: here\r\nX-Half: ",
        head(user, "Content-Type: application/json", "Content-Length: 500") + b'{"config": ',
        b"",
        b"\r\n",
        head(user, "Content-Type: multipart/form-data; boundary=b", "Transfer-Encoding: chunked", path="/api/files")
        + b"5\r\nab",
    ]
    answers = await asyncio.gather(*(exchange(url, begun[nth % len(begun)]) for nth in range(HALVES)))
    # Those that were halfway are told why; each has ended.
    assert {status_of(answer) for answer in answers} == {408}
    assert (await user.http.get("/api/jobs")).status_code == 200


async def test_headers_that_drip_are_ended_at_their_time(user: Client):
    reader, writer = await connect(str(user.http.base_url))
    writer.write(b"GET /api/jobs HTTP/1.1\r\n")

    async def drip() -> None:
        while True:
            writer.write(b"X-Drip: 1\r\n")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    try:
        assert status_of(await asyncio.wait_for(read_to_end(reader), PATIENCE_S)) == 408
    finally:
        dripping.cancel()
        writer.close()


async def test_a_body_that_drips_is_ended_though_it_never_rests(user: Client):
    reader, writer = await connect(str(user.http.base_url))
    writer.write(head(user, "Content-Length: 100000"))

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    try:
        answer = await asyncio.wait_for(read_to_end(reader), PATIENCE_S)
    finally:
        dripping.cancel()
        writer.close()
    assert status_of(answer) == 408
    assert b"SYNTH_HTTP_BODY_BYTES_PER_S" in answer


async def test_an_upload_may_take_many_windows_as_long_as_bytes_flow(start_gateway, client_of):
    user = await client_of(await start_gateway(http_body_window_s=0.3, http_body_bytes_per_s=100))
    boundary = "b0undary"
    rows = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    start = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'.encode()

    async def slowly():
        yield start
        for _ in range(30):
            yield rows
            await asyncio.sleep(0.05)
        yield f"\r\n--{boundary}--\r\n".encode()

    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    reply = await user.http.post("/api/files", content=slowly(), headers=headers)
    assert reply.status_code == 201
    assert reply.json()["bytes"] == 30 * len(rows)


async def test_headers_without_an_end_are_refused_for_their_length(user: Client):
    answer = await exchange(str(user.http.base_url), b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 200_000)
    assert status_of(answer) == 431


async def test_a_refused_body_is_not_received_for_ever(user: Client):
    reader, writer = await connect(str(user.http.base_url))
    writer.write(head(user, "Content-Length: 100000000000", key="nobody"))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).startswith(b"HTTP/1.1 401")

    async def flood() -> None:
        while True:
            writer.write(b"x" * 1000)
            await asyncio.sleep(0.01)

    flooding = asyncio.create_task(flood())
    try:
        await asyncio.wait_for(read_to_end(reader), PATIENCE_S)
    finally:
        flooding.cancel()
        writer.close()

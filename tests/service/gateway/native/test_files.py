"""Uploading files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from pathlib import Path

import pytest

from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.events import FileReady, FileRejected, FileUploaded, LineProblem
from synth.gateway.commands.multipart import receive_form
from synth.gateway.errors import ApiError


async def test_an_upload_is_stored_and_announced(user, bus_as):
    body = b'{"messages": []}\n' * 1000
    reply = await user.http.post(
        "/api/files", data={"purpose": "fine-tune"}, files={"file": ("../../etc/x.jsonl", body, "application/jsonl")}
    )
    assert reply.status_code == 201
    file = reply.json()
    assert file["status"] == "processing"
    assert file["bytes"] == len(body)
    assert file["sha256"] == hashlib.sha256(body).hexdigest()
    content = await user.http.get(f"/api/files/{file['id']}/content")
    assert content.content == body
    assert "filename*=UTF-8''x.jsonl" in content.headers["content-disposition"]
    [event] = await replay(await bus_as("gateway"), [f"file.uploaded.{user.org}.{file['id']}"])
    assert isinstance(event.event, FileUploaded)
    assert event.event.purpose == "fine-tune"
    assert event.event.blob.sha256 == file["sha256"]


async def test_the_same_bytes_are_one_file(user, bus_as):
    replies = await asyncio.gather(
        *(user.http.post("/api/files", files={"file": (f"{i}.jsonl", b"same")}) for i in range(10))
    )
    again = await user.http.post("/api/files", files={"file": ("again.jsonl", b"same")})
    assert {r.json()["id"] for r in [*replies, again]} == {replies[0].json()["id"]}
    assert again.status_code == 200
    assert len(await replay(await bus_as("gateway"), [f"file.uploaded.{user.org}.*"])) == 1


async def test_a_file_shows_what_its_check_found(user, bus_as):
    publisher = Publisher(await bus_as("files"))
    good, bad = [
        (await user.http.post("/api/files", files={"file": ("a.jsonl", body)})).json()["id"] for body in (b"1", b"2")
    ]
    ready = FileReady(rows=3, messages=6, characters=99, tokens=40, lengths=[0, 3], images=2)
    await publisher.once(ready, org=user.org, key=good, id="1")
    problem = LineProblem(line=37, path="$.messages[0].role", reason="Invalid enum value")
    await publisher.once(FileRejected(bad_lines=2, problems=[problem]), org=user.org, key=bad, id="1")
    async with (
        asyncio.timeout(10),
        user.http.stream("GET", "/api/events", params={"after": 0}) as events,
    ):
        async for line in events.aiter_lines():
            if line == "event: file.rejected":
                break
    shown = (await user.http.get(f"/api/files/{good}")).json()
    assert (shown["status"], shown["rows"], shown["messages"], shown["characters"]) == ("ready", 3, 6, 99)
    assert (shown["tokens"], shown["lengths"], shown["images"]) == (40, [0, 3], 2)
    shown = (await user.http.get(f"/api/files/{bad}")).json()
    assert (shown["status"], shown["bad_lines"], shown["problems"][0]["line"]) == ("failed", 2, 37)
    listed = (await user.http.get("/api/files")).json()["data"]
    assert [f["id"] for f in listed] == [bad, good]


async def test_a_rejected_file_that_is_uploaded_again_is_looked_at_again(user, bus_as):
    async def upload() -> dict:
        return (await user.http.post("/api/files", files={"file": ("a.jsonl", b"rows")})).json()

    gateway, publisher = await bus_as("gateway"), Publisher(await bus_as("files"))
    id = (await upload())["id"]
    away = LineProblem(line=1, path="$.images[0]", reason="cannot be fetched")
    seq = await publisher.once(FileRejected(bad_lines=1, problems=[away]), org=user.org, key=id, id="1")
    again = [await upload(), await upload()]
    assert [(f["id"], f["status"]) for f in again] == [(id, "processing")] * 2
    events = await replay(gateway, [f"file.*.{user.org}.{id}"], after=seq)
    assert [e.type for e in events] == ["file.deleted", "file.uploaded"]


async def test_a_broken_or_wrong_body_is_one_clear_error(start_gateway, client_of):
    user = await client_of(await start_gateway(max_upload_bytes=1000))
    cases = {
        400: [
            {"content": b"{}", "headers": {"Content-Type": "application/json"}},
            {"files": {"other": ("a", b"x")}},
            {"files": {"file": ("a.jsonl", b"")}},
            {"files": [("file", ("a", b"x")), ("file", ("b", b"y"))]},
            {"content": b"--b\r\nnot", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        ],
        413: [{"files": {"file": ("a.jsonl", b"x" * 2000)}}],
    }
    for status, requests in cases.items():
        for request in requests:
            reply = await user.http.post("/api/files", **request)
            assert reply.status_code == status, (request, reply.text)
            assert reply.json()["error"]["problems"][0]["what"]
    assert (await user.http.get("/api/files")).json()["data"] == []


async def test_a_body_cut_anywhere_arrives_whole(tmp_path: Path):
    content = os.urandom(3 << 20)
    body = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\neval\r\n' + (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + content + b"\r\n--b--\r\n"
    )
    rng = random.Random(1)

    async def pieces():
        at = 0
        while at < len(body):
            size = rng.choice((1, 2, 7, 50_000))
            yield body[at : at + size]
            at += size

    received = await received_at(tmp_path, pieces())
    assert received.path.read_bytes() == content
    assert (received.sha256, received.size) == (hashlib.sha256(content).hexdigest(), len(content))
    assert (received.name, received.purpose) == ("x", "eval")


async def test_nothing_is_left_of_an_upload_that_is_too_large(tmp_path: Path):
    async def endless():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        while True:
            yield b"x" * 65536

    with pytest.raises(ApiError, match="larger than"):
        await received_at(tmp_path, endless(), limit=5 << 20)
    assert list(tmp_path.iterdir()) == []


async def test_fields_of_a_form_do_not_fill_the_memory(tmp_path: Path):
    async def endless():
        while True:
            yield b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\n' + b"x" * 60_000 + b"\r\n"

    with pytest.raises(ApiError, match="more than 32 fields"):
        await received_at(tmp_path, endless())
    assert list(tmp_path.iterdir()) == []


async def test_a_body_that_does_not_say_its_length_ends_where_the_room_does(tmp_path: Path):
    async def endless():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        while True:
            yield b"x" * 65536

    def check_room() -> None:
        if sum(file.stat().st_size for file in tmp_path.iterdir()) > 4 << 20:
            raise ApiError(503, "no room")

    with pytest.raises(ApiError, match="no room"):
        await received_at(tmp_path, endless(), check_room=check_room)
    assert list(tmp_path.iterdir()) == []


async def received_at(folder: Path, chunks, *, limit: int = 1 << 30, check_room=lambda: None):
    form = "multipart/form-data; boundary=b"
    return await receive_form(chunks, form, folder, limit=limit, check_room=check_room)

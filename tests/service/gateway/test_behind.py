"""A gateway that is behind the log: it shows nothing that it cannot answer about, and denies nothing that is there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator

import httpx
import pytest

from synth.gateway.read_model.store import ReadModel

SSE = {"Accept": "text/event-stream"}


class Disk:
    """The disk of one gateway's read model."""

    full_for: str = ""

    def apply(self, model: ReadModel, batch: list) -> None:
        if self.full_for and model.path.name == self.full_for:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        self.into(model, batch)

    into = staticmethod(ReadModel.apply)


@pytest.fixture
def disk(monkeypatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(ReadModel, "apply", lambda model, batch: disk.apply(model, batch))
    monkeypatch.setattr("synth.gateway.read_model.hub._NO_SPACE_PAUSE_S", 0.1)
    yield disk
    disk.full_for = ""


async def submitted_elsewhere(start_gateway, client_of, disk: Disk):
    """A user of a gateway whose read model takes no more, and a job that another gateway took then."""
    elsewhere = await client_of(await start_gateway())
    running = await start_gateway(ping_s=0.2)
    user = await client_of(running, elsewhere.key)
    disk.full_for = "gateway-1.db"
    return running, user, (await elsewhere.submit())["id"]


async def test_a_job_that_the_log_has_is_not_denied(start_gateway, client_of, disk):
    _, user, id = await submitted_elsewhere(start_gateway, client_of, disk)
    reply = await user.http.get(f"/api/jobs/{id}")
    assert (reply.status_code, "behind the event log" in reply.text) == (503, True)
    assert int(reply.headers["retry-after"]) > 0
    disk.full_for = ""
    async with asyncio.timeout(20):
        while (reply := await user.http.get(f"/api/jobs/{id}")).status_code == 503:
            continue
    assert reply.json()["id"] == id


async def test_an_event_is_streamed_once_its_job_can_be_asked_for(start_gateway, client_of, disk):
    _, user, id = await submitted_elsewhere(start_gateway, client_of, disk)
    lines: list[str] = []

    async def watch() -> httpx.Response:
        async with user.http.stream("GET", "/api/events", params={"after": 0}, headers=SSE) as events:
            async for line in events.aiter_lines():
                lines.append(line)
                if line.startswith("data: "):
                    break
        return await user.http.get(f"/api/jobs/{id}")

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(20):
        while lines.count(": ping") < 3:
            await asyncio.wait([watching], timeout=0.1)
            assert not watching.done()
    assert not [line for line in lines if line.startswith("data: ")]
    disk.full_for = ""
    assert (await asyncio.wait_for(watching, 20)).json()["id"] == id


async def test_a_key_that_is_revoked_meanwhile_is_shown_no_event(start_gateway, client_of, disk):
    running, user, id = await submitted_elsewhere(start_gateway, client_of, disk)
    disk.full_for = ""
    made = (await user.http.post("/api/keys", json={})).json()
    headers = SSE | {"Authorization": f"Bearer {made['key']}"}
    async with (
        httpx.AsyncClient(base_url=running.service.url, headers=headers, timeout=20) as http,
        asyncio.timeout(30),
    ):
        last = (await user.http.get(f"/api/jobs/{id}")).json()["last_seq"]
        disk.full_for = "gateway-1.db"
        later = asyncio.create_task(user.submit())
        async with http.stream("GET", "/api/events", params={"after": last}) as events:
            lines = events.aiter_lines()
            while await anext(lines) != ": ping":
                continue
            await user.http.delete(f"/api/keys/{made['id']}")
            rest = [line async for line in lines]
    assert not [line for line in rest if line.startswith("data: ")]
    disk.full_for = ""
    assert (await later)["id"]

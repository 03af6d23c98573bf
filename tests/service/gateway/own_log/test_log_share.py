"""One organisation cannot fill the log, and what it deletes gives its bytes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from nats.js.errors import APIError

from synth.bus.connection import Connection
from synth.bus.recorded import EVENTS
from synth.bus.replay import follow, replay
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.erasure.orphans import find_orphans
from synth.erasure.sweep import Sweeper
from synth.events import JobRejected
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client, Running
from tests.service.process import running

LOG_BYTES = 1 << 20
JOB = {"config": "#" * 10_000}


@pytest.fixture
async def admin(bus_as) -> Connection:
    """The user `bus` of a bus with a small log."""
    admin = await bus_as("bus")
    await provision(admin.js, topology(log_max_bytes=LOG_BYTES))
    return admin


@pytest.fixture
async def gateway(admin: Connection, start_gateway) -> AsyncIterator[Running]:
    """A gateway, and what erases beside it."""
    gateway = await start_gateway()
    sweeping = asyncio.create_task(Sweeper(admin, gateway.service.blobs).run())
    yield gateway
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping


async def used(admin: Connection) -> int:
    return (await admin.js.stream_info(EVENTS)).state.bytes


async def submit_and_cancel(user: Client) -> tuple[httpx.Response, str]:
    """Submit a job; returns the response, and the id of a job that is cancelled."""
    reply = await user.http.post("/api/jobs", json=JOB)
    if reply.status_code != 201:
        return reply, ""
    id = reply.json()["id"]
    (await user.http.post(f"/api/jobs/{id}/cancel")).raise_for_status()
    return reply, id


async def test_an_organisation_at_its_share_of_the_log_is_refused_until_it_deletes(
    admin: Connection, gateway: Running, client_of, bus_as
):
    greedy, other = await client_of(gateway), await client_of(gateway)
    jobs: list[str] = []
    async with asyncio.timeout(60):
        while (submitted := await submit_and_cancel(greedy))[0].status_code == 201:
            jobs.append(submitted[1])
            # As it submits, it deletes one of two.
            if len(jobs) % 2:
                (await greedy.http.delete(f"/api/jobs/{jobs[-1]}")).raise_for_status()
    refused = submitted[0]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "log_bytes_limit")
    message = refused.json()["error"]["message"]
    assert "SYNTH_ORG_LOG_BYTES" in message
    assert "synthctl jobs rm" in message
    full = await used(admin)
    assert full < LOG_BYTES / 2

    job = (await other.http.post("/api/jobs", json=JOB)).raise_for_status().json()["id"]
    trainer, fence = await job_histories.begin(bus_as, other.org, job)
    await job_histories.succeed(trainer, fence, steps=1)

    for id in jobs[1::2]:
        (await greedy.http.delete(f"/api/jobs/{id}")).raise_for_status()
    async with asyncio.timeout(30):
        while (await submit_and_cancel(greedy))[0].status_code != 201:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.1)
    for id in jobs:
        await erased(admin, greedy.org, id)
    assert await used(admin) < full / 2


async def test_the_limit_counts_the_bytes_that_an_organisation_has_in_the_log(
    admin: Connection, gateway: Running, client_of
):
    user = await client_of(gateway)
    _, kept = await submit_and_cancel(user)
    _, deleted = await submit_and_cancel(user)
    (await user.http.delete(f"/api/jobs/{deleted}")).raise_for_status()
    file = (await user.http.post("/api/files", files={"file": ("a.jsonl", b"{}\n")})).json()["id"]
    (await user.http.delete(f"/api/files/{file}")).raise_for_status()
    await erased(admin, user.org, deleted)
    await erased(admin, user.org, file, left="file.deleted")
    async with asyncio.timeout(30):
        while await counted(user) != (await used(admin), int(LOG_BYTES * 0.9 / 2)):  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.05)
    assert len(await replay(admin, [f"*.*.{user.org}.{kept}"])) == 2


async def counted(user: Client) -> tuple[int, int]:
    """The bytes of the log that an organisation uses, and may use."""
    limits = (await user.http.get("/api/limits")).json()["data"]
    [limit] = [limit for limit in limits if limit["name"] == "log_bytes"]
    return limit["used"], limit["limit"]


async def test_a_job_is_deleted_from_a_full_log_and_gives_room(admin: Connection, gateway: Running, client_of):
    user = await client_of(gateway)
    _, job = await submit_and_cancel(user)
    await fill(admin)
    full = await used(admin)
    reply = await user.http.delete(f"/api/jobs/{job}")
    assert reply.status_code == 200, reply.text
    await erased(admin, user.org, job)
    assert await used(admin) < full - len(JOB["config"])
    assert (await admin.js.stream_info("DEAD")).state.messages == 0


async def has(admin: Connection, subject: str) -> None:
    """Wait until the log has an event on this subject."""
    async with asyncio.timeout(30):
        async for _ in follow(admin, [subject]):
            return


async def erased(admin: Connection, org: str, id: str, *, left: str = "job.deleted") -> None:
    """Wait until the log says of a job or a file that it was deleted, and nothing else."""
    async with asyncio.timeout(30):
        while [event.type for event in await replay(admin, [f"*.*.{org}.{id}"])] != [left]:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.05)


async def fill(admin: Connection) -> None:
    """Append to the log until it takes nothing more."""
    for size in (100_000, 1_000, 1):
        with suppress(APIError):
            while True:
                await admin.js.publish("train.logged.org_x.job_x", b"#" * size, stream=EVENTS)


async def test_a_burst_of_submissions_stays_within_the_share(admin: Connection, gateway: Running, client_of):
    user = await client_of(gateway)
    # The validation of each may add an eighth of the share.
    replies = await asyncio.gather(*(user.http.post("/api/jobs", json=JOB) for _ in range(20)))
    assert Counter(reply.status_code for reply in replies) == {201: 6, 429: 14}
    assert {reply.headers.get("x-should-retry") for reply in replies if reply.status_code == 429} == {None}


async def test_a_long_configuration_is_a_blob_of_its_job(
    admin: Connection, gateway: Running, client_of, bus_as, settings_of, tmp_path: Path
):
    user, blobs = await client_of(gateway), gateway.service.blobs
    sent = {"config": "# é\n" * 40_000 + "[job]\nmodel = 1", "config_name": "long.toml"}
    reply = await user.http.post("/api/jobs", json=sent, headers={"Idempotency-Key": "k"})
    assert reply.status_code == 201, reply.text
    job = reply.json()["id"]
    assert reply.json()["config"] == sent["config"]
    assert await used(admin) < 2_000
    assert (await user.http.get(f"/api/jobs/{job}")).json()["config"] == sent["config"]
    again = await user.http.post("/api/jobs", json=sent, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"]) == (200, job)
    other = await user.http.post("/api/jobs", json=sent | {"config": "x"}, headers={"Idempotency-Key": "k"})
    assert other.status_code == 422
    assert await find_orphans(admin, blobs, older_than=timedelta()) == []

    with running("validator", settings_of("validator"), tmp_path / "validator.log"):
        await has(admin, f"job.rejected.{user.org}.{job}")
    [rejected] = await replay(admin, [f"job.rejected.{user.org}.{job}"])
    assert isinstance(rejected.event, JobRejected)
    assert rejected.event.problems[0].where == "long.toml:40001 [job].data"

    [blob] = await blobs.uris_below(f"jobs/{job}")
    [created] = await replay(admin, [f"job.created.{user.org}.{job}"])
    assert blob in str(created.event)
    (await user.http.delete(f"/api/jobs/{job}")).raise_for_status()
    await erased(admin, user.org, job)
    assert await blobs.uris_below(f"jobs/{job}") == []

"""The stored logs of a job: read by its organisation alone, counted in its bytes, removed with the job."""

from __future__ import annotations

import asyncio
import json

from synth.blobs import BlobStore
from synth.bus.publish import Publisher
from synth.bus.tasks.attempt_logs import with_digest
from synth.events import CollectionLogged, TrainLogged

ROWS = b'{"messages": []}\n'


def line(second: int, service: str, text: str, **fields: object) -> str:
    head = {"event": text, "level": "info", "service": service, "timestamp": f"2026-11-28T10:00:{second:02}.5Z"}
    return json.dumps(head | fields) + "\n"


async def store(blobs: BlobStore, job: str, name: str, text: str):
    return await blobs.put_bytes(f"jobs/{job}/logs/{name}.jsonl", text.encode())


async def test_the_lines_of_a_job_are_merged_by_time_for_its_organisation_alone(start_gateway, client_of):
    running = await start_gateway()
    user, other = await client_of(running), await client_of(running)
    job = (await user.submit())["id"]
    path, blobs = f"/api/jobs/{job}/logs", running.service.blobs
    assert (await user.http.get(path)).json()["data"] == []
    await store(blobs, job, "1-train", line(1, "trainer", "begun", attempt=1) + line(5, "trainer", "ends"))
    failed = line(3, "rollouts", "failed", exception="Traceback …\nValueError: x")
    await store(blobs, job, "2-collect", line(2, "rollouts", "collects") + failed + '{"cut o\n')
    lines = (await user.http.get(path)).json()["data"]
    assert [(found["service"], found["message"]) for found in lines] == [
        ("trainer", "begun"),
        ("rollouts", "collects"),
        ("rollouts", "failed"),
        ("trainer", "ends"),
    ]
    assert (lines[0]["fields"], lines[0]["trace"]) == ({"attempt": 1}, None)
    assert lines[2]["trace"].endswith("ValueError: x")
    later = (await user.http.get(path, params={"since": "2026-11-28T11:00:03+01:00"})).json()["data"]
    assert [found["message"] for found in later] == ["failed", "ends"]
    assert (await other.http.get(path)).status_code == 404


async def test_a_damaged_log_is_shown_with_a_note(start_gateway, client_of):
    running = await start_gateway()
    user = await client_of(running)
    job = (await user.submit())["id"]
    text = with_digest((line(1, "trainer", "begun") + line(2, "trainer", "ends")).encode()).decode()
    await store(running.service.blobs, job, "1-train", text)
    path = f"/api/jobs/{job}/logs"
    assert [found["message"] for found in (await user.http.get(path)).json()["data"]] == ["begun", "ends"]
    await store(running.service.blobs, job, "1-train", text.replace("begun", "began"))
    lines = (await user.http.get(path)).json()["data"]
    assert [found["message"] for found in lines[:2]] == ["began", "ends"]
    assert (lines[2]["service"], lines[2]["level"]) == ("gateway", "error")
    assert "is not what was written" in lines[2]["message"]


async def test_stored_logs_count_in_the_bytes_of_the_organisation(start_gateway, client_of, bus_as):
    user = await client_of(await start_gateway(org_file_bytes=1000))
    job = (await user.submit())["id"]
    blob = await BlobStore.open("memory:///").put_bytes(f"jobs/{job}/logs/x", b"x")
    for service, event in (
        ("trainer", TrainLogged(blob=blob, bytes=700)),
        ("rollouts", CollectionLogged(blob=blob, bytes=990)),
    ):
        await Publisher(await bus_as(service)).once(event, org=user.org, key=job, id="x")
    async with asyncio.timeout(10):
        while True:
            reply = await user.http.post("/api/files", files={"file": ("a.jsonl", ROWS)})
            if reply.status_code == 429:
                break
            await user.http.delete(f"/api/files/{reply.json()['id']}")
    assert "990 bytes" in reply.json()["detail"]


async def test_a_log_that_is_stored_after_the_job_was_deleted_is_removed(start_gateway, client_of, bus_as):
    running = await start_gateway()
    user = await client_of(running)
    job = (await user.submit())["id"]
    assert (await user.http.post(f"/api/jobs/{job}/cancel")).status_code == 202
    assert (await user.http.delete(f"/api/jobs/{job}")).status_code == 200
    blobs = running.service.blobs
    blob = await store(blobs, job, "1-train", line(1, "trainer", "task done"))
    await Publisher(await bus_as("trainer")).once(TrainLogged(blob=blob, bytes=9), org=user.org, key=job, id="x")
    async with asyncio.timeout(20):
        while await blobs.uris_below(f"jobs/{job}"):
            continue

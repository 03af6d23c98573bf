"""Deleting files: gone for every reader at once, their bytes when no job needs them."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.history.job_log import append_decided, start_attempt
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.events import FileDeleted, FileReady, FileUploaded, JobValidated, JobVerified, ModelRef
from synth.gateway.commands.delete import empty_trash
from tests.service.gateway import job_histories
from tests.service.gateway.wait import wait_until_shown

BODY = b'{"messages": []}\n'


async def uploaded(user, body: bytes = BODY) -> str:
    reply = await user.http.post("/api/files", files={"file": ("a.jsonl", body)})
    assert reply.status_code == 201
    return reply.json()["id"]


async def verified_with(user, bus_as, file: str, blob) -> str:
    """A job that the verifier has let pass with this file."""
    job = (await user.submit(training_file=file))["id"]
    resolved = {"kind": "sft", "model": "tiny", "training_file": file}
    validated = JobValidated(job=resolved, origins={}, warnings=[])
    await append_decided(await bus_as("validator"), user.org, job, lambda _: validated)
    verified = JobVerified(source=ModelRef(id="tiny", path="tiny"), training_data=blob)
    history, seq = await append_decided(await bus_as("verifier"), user.org, job, lambda _: verified)
    await wait_until_shown(user, seq or history.last_seq)
    return job


async def test_a_deleted_file_is_not_there_any_more(user, bus_as):
    file = await uploaded(user)
    kept = await uploaded(user, BODY * 2)
    reply = await user.http.delete(f"/api/files/{file}")
    assert reply.json() == {"id": file, "object": "file", "deleted": True}
    paths = (f"/api/files/{file}", f"/api/files/{file}/content", f"/api/files/{file}/jobs", f"/v1/files/{file}")
    for path in paths:
        assert (await user.http.get(path)).status_code == 404, path
    assert (await user.http.delete(f"/api/files/{file}")).status_code == 404
    assert [f["id"] for f in (await user.http.get("/api/files")).json()["data"]] == [kept]
    events = await replay(await bus_as("gateway"), [f"file.*.{user.org}.{file}"])
    assert [type(e.event) for e in events] == [FileUploaded, FileDeleted]


async def test_deletions_at_the_same_time_are_one(user, bus_as):
    file = await uploaded(user)
    replies = await asyncio.gather(*(user.http.delete(f"/api/files/{file}") for _ in range(6)))
    assert {r.status_code for r in replies} <= {200, 404}
    assert len(await replay(await bus_as("gateway"), [f"file.deleted.{user.org}.{file}"])) == 1


async def test_another_organisations_file_cannot_be_deleted(start_gateway, client_of):
    running = await start_gateway()
    owner, other = await client_of(running), await client_of(running)
    file = await uploaded(owner)
    assert (await other.http.delete(f"/api/files/{file}")).status_code == 404
    assert (await owner.http.get(f"/api/files/{file}")).status_code == 200


async def test_the_same_bytes_come_back_under_their_id_and_are_checked_anew(user, bus_as, blobs):
    file = await uploaded(user)
    files = Publisher(await bus_as("files"))
    await wait_until_shown(
        user, await files.once(FileReady(rows=1, messages=2, characters=3), org=user.org, key=file, id="1")
    )
    await user.http.delete(f"/api/files/{file}")
    again = await user.http.post("/api/files", files={"file": ("b.jsonl", BODY)})
    assert (again.status_code, again.json()["id"]) == (201, file)
    assert (again.json()["status"], again.json()["filename"]) == ("processing", "b.jsonl")
    # What was said of the first upload, late, is no word on this one; the second deletion ends this one.
    late = FileDeleted(requested_by="key_1", uploaded_seq=1)
    await wait_until_shown(user, await Publisher(await bus_as("gateway")).once(late, org=user.org, key=file, id="late"))
    assert (await user.http.get(f"/api/files/{file}/content")).content == BODY
    assert (await user.http.delete(f"/api/files/{file}")).status_code == 200
    third = await user.http.post("/api/files", files={"file": ("c.jsonl", BODY)})
    assert third.status_code == 201
    uploads = [e.event for e in await replay(await bus_as("gateway"), [f"file.uploaded.{user.org}.{file}"])]
    assert len({e.blob.uri for e in uploads if isinstance(e, FileUploaded)}) == 3


async def test_the_bytes_of_a_deleted_file_are_removed(start_gateway, client_of, blobs):
    running = await start_gateway()
    user = await client_of(running)
    body = BODY * 3
    file = await uploaded(user, body)
    stored = list((blobs.root / "orgs" / user.org / "files").iterdir())
    assert len(stored) == 1
    await user.http.delete(f"/api/files/{file}")
    # The watchdog of the gateway does it, a second later at most.
    async with asyncio.timeout(10):
        while await asyncio.to_thread(stored[0].exists):
            continue


async def test_a_job_that_was_verified_with_a_file_keeps_its_bytes_until_it_ends(
    start_gateway, client_of, bus_as, blobs, monkeypatch
):
    from synth.gateway import watchdog

    swept = asyncio.get_running_loop().create_future()

    async def only_note(model, blobs) -> None:
        if not swept.done():
            swept.set_result(model)

    monkeypatch.setattr(watchdog, "empty_trash", only_note)
    running = await start_gateway()
    user = await client_of(running)
    file = await uploaded(user, BODY * 4)
    gateway = await bus_as("gateway")
    [upload] = await replay(gateway, [f"file.uploaded.{user.org}.{file}"])
    assert isinstance(upload.event, FileUploaded)
    ref = upload.event.blob
    verified = await verified_with(user, bus_as, file, ref)
    unverified = (await user.submit())["id"]
    await user.http.delete(f"/api/files/{file}")
    model = await asyncio.wait_for(swept, 10)

    async def gone() -> bool:
        await empty_trash(model, blobs)
        return not (blobs.root / ref.uri.removeprefix("blob://")).exists()

    assert not await gone()
    _, fence = await start_attempt(await bus_as("trainer"), user.org, verified, worker="w")
    assert fence is not None
    await wait_until_shown(user, await job_histories.succeed(await bus_as("trainer"), fence, steps=1) or 0)
    assert not await gone(), "a job that came before the deletion may still be verified with it"
    await user.http.post(f"/api/jobs/{unverified}/cancel")
    later = (await user.submit())["id"]
    assert await gone(), f"{later} came after the deletion, so it cannot have the file"


@pytest.mark.parametrize("prefix", ["/api", "/api/v1", "/api/api"])
async def test_the_jobs_of_a_file_are_listed(user, prefix):
    file = (await user.http.post(f"{prefix}/learning/files", files={"file": ("a.jsonl", BODY)})).json()["id"]
    jobs = [(await user.submit(training_file=file))["id"], (await user.submit(validation_file=file))["id"]]
    await user.submit()
    listed = (await user.http.get(f"{prefix}/files/{file}/jobs")).json()
    assert [j["id"] for j in listed["data"]] == jobs[::-1]
    assert listed["data"][1]["training_file"] == file
    page = (await user.http.get(f"{prefix}/files/{file}/jobs", params={"limit": 1, "after": jobs[1]})).json()
    assert [j["id"] for j in page["data"]] == jobs[:1]


async def test_files_are_listed_by_purpose(user):
    for purpose in ("fine-tune", "validation"):
        form = {"data": {"purpose": purpose}, "files": {"file": ("a.jsonl", purpose.encode())}}
        assert (await user.http.post("/api/files", **form)).status_code == 201
    listed = (await user.http.get("/api/v1/files", params={"purpose": "validation"})).json()["data"]
    assert [f["purpose"] for f in listed] == ["validation"]

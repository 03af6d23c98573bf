"""What was deleted is erased from the log: no byte of it is left, and everything else is as it was."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from synth.api.audit import AuditRecord
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.dead_letters import publish_dead_letter
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.erasure.erase import erase_job, erase_organisation
from synth.erasure.orphans import delete_orphans, find_orphans
from synth.errors import UserError
from synth.events import JobDeleted
from synth.gateway.audit.reading import list_records
from tests.service.bus.own_server import declare
from tests.service.gateway import job_histories

MARKER = "a-name-that-must-go"


def files_with(home: Path, text: str) -> list[str]:
    """The files below a folder that hold these bytes."""
    found: list[str] = []
    # The server removes what it has erased, meanwhile: `walk` passes over a folder that is gone.
    for path in (Path(folder) / name for folder, _, names in os.walk(home) for name in names):
        with suppress(FileNotFoundError):
            if text.encode() in path.read_bytes():
                found.append(path.relative_to(home).as_posix())
    return found


def silent(line: str) -> None:
    """Nobody reads it."""


async def read_records(admin: Connection, org: str) -> list[AuditRecord]:
    """The audit records of an organisation."""
    records, more = await list_records(admin, org=org, after=0, since=None, limit=1000)
    assert not more
    return records


async def gone(blobs: BlobStore, folder: str) -> None:
    """Wait until the gateways have removed the blobs of what was deleted."""
    async with asyncio.timeout(30):
        while await blobs.uris_below(folder):  # noqa: ASYNC110 - nothing tells when they are
            await asyncio.sleep(0.05)


async def forgotten(home: Path) -> None:
    """Wait until the gateways' read models hold no byte of what was deleted."""
    async with asyncio.timeout(30):
        while any("gateway" in name for name in files_with(home, MARKER)):  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.05)


async def test_of_an_erased_job_no_byte_is_left_and_others_stay(bus_as, start_gateway, client_of, own_bus, tmp_path):
    running = await start_gateway()
    user, blobs, admin = await client_of(running), running.service.blobs, await bus_as("bus")
    sent = {"config": f"# {MARKER}", "name": MARKER}
    job = (await user.http.post("/api/jobs", json=sent, headers={"Idempotency-Key": "k"})).json()["id"]
    other = (await user.submit(name="stays"))["id"]
    # A job that may yet be verified with what another one made would hold its blobs.
    await job_histories.begin(bus_as, user.org, other)
    await blobs.put_bytes(f"jobs/{job}/rollouts/0.json", MARKER.encode())
    subject = f"job.created.{user.org}.{job}"
    await publish_dead_letter(await bus_as("validator"), subject, MARKER.encode(), reason=f"broke: {MARKER}")

    with pytest.raises(UserError, match="not deleted"):
        await erase_job(admin, blobs, user.org, job, report=silent)
    await user.http.post(f"/api/jobs/{job}/cancel")
    assert (await user.http.delete(f"/api/jobs/{job}")).status_code == 200
    await gone(blobs, f"jobs/{job}")
    await forgotten(tmp_path)
    assert files_with(tmp_path, MARKER), "the log and its dead letters hold it"
    done = await erase_job(admin, blobs, user.org, job, report=silent)
    assert done.letters == 1
    assert [type(e.event) for e in await replay(admin, [f"*.*.{user.org}.{job}"])] == [JobDeleted]
    await running.stop()
    assert files_with(tmp_path, MARKER) == []

    # From the log alone, and from the file as it was.
    for path in (tmp_path / "anew.db", tmp_path / "gateway-0.db"):
        again = await start_gateway(read_model_path=path)
        asker = await client_of(again, user.key)
        listed = (await asker.http.get("/api/jobs")).json()["data"]
        assert [(j["id"], j["name"]) for j in listed] == [(other, "stays")]
        assert (await asker.http.get(f"/api/jobs/{job}/events")).status_code == 404
        reply = await asker.http.post("/api/jobs", json=sent, headers={"Idempotency-Key": "k"})
        assert reply.status_code == 409
        assert "was deleted" in reply.text
        await again.stop()


async def test_an_organisation_is_erased_once_all_of_it_is_deleted_and_its_keys_revoked(
    bus_as, start_gateway, client_of, own_bus, tmp_path
):
    running = await start_gateway()
    user, other = await client_of(running), await client_of(running)
    blobs, admin = running.service.blobs, await bus_as("bus")
    secrets = SecretStore(admin, running.service.secrets)
    job, kept = (await user.submit(name=MARKER))["id"], (await other.submit())["id"]
    await secrets.put_judge_key(user.org, MARKER, "k", origin="https://judge.example.com")
    await blobs.put_bytes(f"orgs/{user.org}/images/0", MARKER.encode())

    async def erase() -> Any:
        return await erase_organisation(admin, blobs, secrets, user.org, report=silent)

    with pytest.raises(UserError, match="API keys"):
        await erase()
    await user.http.post(f"/api/jobs/{job}/cancel")
    [key] = await secrets.api_keys(user.org)
    await secrets.revoke_api_key(user.org, key.key_id)
    with pytest.raises(UserError, match=f"not deleted: {job}"):
        await erase()
    # Its own key opens no more; another one of the organisation's has deleted the job before.
    await Publisher(running.service.bus).once(JobDeleted(requested_by=key.key_id), org=user.org, key=job, id="deleted")
    await forgotten(tmp_path)
    records = await read_records(admin, user.org)
    done = await erase()
    assert (done.events, done.blobs, done.records) == (2, 1, len(records))
    assert records
    assert await read_records(admin, user.org) == []
    assert await read_records(admin, other.org)
    await running.stop()
    assert files_with(tmp_path, MARKER) == []
    assert await secrets.organisation(user.org) is None
    assert [e.type for e in await replay(admin, [f"*.*.{other.org}.{kept}"])] == ["job.created"]


async def test_a_damaged_event_keeps_the_blobs_of_its_text_and_a_newer_one_all(bus_as, tmp_path):
    admin, blobs = await bus_as("bus"), BlobStore.open(f"file:{tmp_path / 'some-blobs'}")
    for name in ("named.json", "tree.manifest.json", "tree/file", "other.json"):
        await blobs.put_bytes(f"jobs/job_gone/{name}", b"{}")
    text = b'{"uri":"blob://jobs/job_gone/named.json","tree":"blob://jobs/job_gone/tree.manifest.json","size'
    await admin.js.publish("job.created.x", text, stream="EVENTS")
    found = await find_orphans(admin, blobs, older_than=timedelta())
    assert [orphan.uri for orphan in found] == ["blob://jobs/job_gone/other.json"]
    says_it_is_newer = {"Synth-Schema": "99"}
    text = b'{"uri":"blob://jobs/job_gone/other.json"}'
    await admin.js.publish("job.created.org_a.job_a", text, stream="EVENTS", headers=says_it_is_newer)
    assert await find_orphans(admin, blobs, older_than=timedelta()) == []
    await declare(admin, job_created=99)
    await admin.js.publish("job.created.org_a.job_b", b"{}", stream="EVENTS", headers=says_it_is_newer)
    with pytest.raises(UserError, match="may name any blob"):
        await find_orphans(admin, blobs, older_than=timedelta())


async def test_blobs_that_nothing_refers_to_are_found_and_those_of_a_running_job_are_not(
    bus_as, start_gateway, client_of, tmp_path
):
    running = await start_gateway()
    user, blobs, admin = await client_of(running), running.service.blobs, await bus_as("bus")
    ended, live = (await user.submit())["id"], (await user.submit())["id"]
    await job_histories.begin(bus_as, user.org, live)
    await user.http.post(f"/api/jobs/{ended}/cancel")
    for job in (ended, live, "job_unknown"):
        await blobs.put_bytes(f"jobs/{job}/rollouts/0.json", b"{}")
    (await user.http.post("/api/files", files={"file": ("a.jsonl", b"{}\n")})).raise_for_status()
    await blobs.put_bytes(f"orgs/{user.org}/images/0", b"a picture, which a file's row names")
    expected = sorted(f"blob://jobs/{job}/rollouts/0.json" for job in (ended, "job_unknown"))
    assert await find_orphans(admin, blobs, older_than=timedelta(hours=1)) == []
    found = await find_orphans(admin, blobs, older_than=timedelta())
    assert [orphan.uri for orphan in found] == expected
    assert await delete_orphans(blobs, found, older_than=timedelta(hours=1)) == 0, "they were written again meanwhile"
    assert await delete_orphans(blobs, found, older_than=timedelta()) == 2
    assert await find_orphans(admin, blobs, older_than=timedelta()) == []

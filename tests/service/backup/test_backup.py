"""A cluster that is backed up while it works, destroyed, and restored is the cluster that it was."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

import msgspec
from nats.js.errors import NotFoundError

from synth.backup.folder import BackupFolder
from synth.backup.save import save_cluster
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.bus.server.topology import AUDIT, EVENTS, WORK
from synth.events import (
    FileDeleted,
    FileUploaded,
)
from tests.keyrings import secrets_of
from tests.service.backup.clusters import Cluster, with_history
from tests.service.jobs import SFT, make_model_dir
from tests.service.own_bus import provisioned


def answers(cluster: Cluster) -> dict[str, object]:
    """What the API says of all that the user has, and the bytes of all files."""
    with cluster.http() as http:
        found: dict[str, object] = {path: http.get(path).json() for path in ("/api/jobs", "/api/files", "/api/models")}
        for job in found["/api/jobs"]["data"]:  # type: ignore[index]
            for part in ("", "/checkpoints", "/metrics", "/events"):
                path = f"/api/jobs/{job['id']}{part}"
                reply = http.get(path, headers={"Accept": "application/json"})
                assert reply.status_code == 200, path
                found[path] = reply.json()
        for file in found["/api/files"]["data"]:  # type: ignore[index]
            path = f"/api/files/{file['id']}/content"
            found[path] = http.get(path).content
    return found


async def answers_at_rest(cluster: Cluster) -> dict[str, object]:
    """Return the answers once the gateway has announced the place of each job that waits.

    It announces them because `answers` reads their events.
    """
    deadline = time.monotonic() + 30
    while True:
        result = answers(cluster)
        jobs = result["/api/jobs"]["data"]  # type: ignore[index]
        waiting = [job["id"] for job in jobs if job["waiting"]]
        assert len(waiting) == 3
        if all('"queue.waiting"' in json.dumps(result[f"/api/jobs/{id}/events"]) for id in waiting):
            # The list of jobs was read before their events, and may be older than the last announcement.
            return answers(cluster)
        assert time.monotonic() < deadline, waiting
        await asyncio.sleep(0.1)


async def test_a_restored_cluster_is_the_one_that_was_saved(make, tmp_path):
    old = make("old")
    org = await with_history(old)
    with old.service("gateway"):
        before = await answers_at_rest(old)
        with old.http() as http:
            recorded = http.get("/api/audit").json()["data"]
        backup = tmp_path / "backup"
        saved = old.synthd("backup", str(backup))
        assert saved.returncode == 0, saved.stderr
    events = await replay(await old.as_("gateway"), [">"])
    # Bytes of the blobs themselves.
    blobs = {key: size async for key, size, _ in old.blobs.entries()}
    await old.destroy()

    new = make("new")
    restored = new.synthd("restore", str(backup))
    assert restored.returncode == 0, restored.stderr
    assert new.synthd("check").stdout == ""
    with new.service("gateway"):
        assert answers(new) == before
        # And what comes goes on behind it.
        with new.http() as http:
            assert http.post("/api/jobs", json={"config": "x"}).status_code == 201
            assert recorded
            assert http.get("/api/audit").json()["data"][: len(recorded)] == recorded
    again = await replay(await new.as_("gateway"), [">"])
    assert [(e.seq, e.time, e.id, e.event) for e in again[: len(events)]] == [
        (e.seq, e.time, e.id, e.event) for e in events
    ]
    assert again[len(events)].seq == events[-1].seq + 1
    assert {key: size async for key, size, _ in new.blobs.entries()} == blobs
    assert org


async def with_files(cluster: Cluster) -> list[str]:
    """Three files in the log and in the store; returns their blobs' keys."""
    await provisioned(cluster.bus)
    gateway, keys = await cluster.as_("gateway"), list[str]()
    for n in range(3):
        key = f"orgs/org_a/files/{n}"
        blob = await cluster.blobs.put_bytes(key, random.Random(n).randbytes(50_000))
        event = FileUploaded(name=f"{n}.jsonl", purpose="fine-tune", blob=blob)
        await Publisher(gateway).once(event, org="org_a", key=f"file_{n}", id="1")
        keys.append(key)
    return keys


async def test_a_restored_store_is_the_one_that_was_saved_and_another_clusters_is_refused(make, tmp_path):
    old, backup = make("old"), str(tmp_path / "backup")
    assert old.synthd("init").returncode == 0
    await with_files(old)
    assert old.synthd("backup", backup).returncode == 0
    ids = await old.blobs.identities()
    assert len(set(ids.values())) == 1
    (old.home / "blobs").rename(tmp_path / "away")
    away = old.synthd("backup", backup)
    assert (away.returncode, "is its disk mounted" in away.stderr) == (1, True), away.stderr
    (old.home / "blobs").rmdir()
    (tmp_path / "away").rename(old.home / "blobs")
    new = make("new")
    await new.blobs.identify("other")
    refused = new.synthd("restore", backup)
    assert (refused.returncode, "is another cluster's" in refused.stderr) == (1, True), refused.stderr
    shutil.rmtree(new.home / "blobs")
    for _ in range(2):
        # Killed before its log was there, it is begun again.
        assert new.synthd("restore", backup).returncode == 0
        await (await new.as_("bus")).js.delete_stream(EVENTS)
    assert new.synthd("restore", backup).returncode == 0
    assert await new.blobs.identities() == ids
    assert new.synthd("init").returncode == 0


async def test_a_second_backup_copies_only_what_is_new_and_removes_what_is_gone(make, tmp_path):
    cluster, folder = make("one"), BackupFolder(tmp_path / "backup")
    keys = await with_files(cluster)
    assert cluster.synthd("backup", str(folder.path)).returncode == 0
    first = folder.manifest()
    assert first is not None
    inodes = {path: path.stat().st_ino for path in (folder.path / "blobs").glob("*/*")}
    assert len(inodes) == 3
    ref = await cluster.blobs.put_bytes("jobs/job_x/new", b"new")
    assert cluster.synthd("backup", str(folder.path)).returncode == 0
    after = {path: path.stat().st_ino for path in (folder.path / "blobs").glob("*/*")}
    assert {path: after.get(path) for path in inodes} == inodes
    assert set(after) - set(inodes) == {folder.blob(ref.sha256)}
    assert not (folder.path / first.index).exists()
    # The log still names what the store lost: the backup says so, and is made all the same.
    await cluster.blobs.delete([ref.uri, f"blob://{keys[0]}"])
    lossy = cluster.synthd("backup", str(folder.path))
    assert (lossy.returncode, keys[0] in lossy.stderr) == (1, True)
    assert not folder.blob(ref.sha256).exists()
    third = folder.manifest()
    assert third is not None
    assert third.missing == [keys[0]]


async def test_a_damaged_backup_is_refused_and_a_whole_one_is_not_restored_over_data(make, tmp_path):
    old, folder = make("old"), BackupFolder(tmp_path / "backup")
    await with_files(old)
    assert old.synthd("backup", str(folder.path)).returncode == 0
    manifest = folder.manifest()
    assert manifest is not None
    blob = next(iter(folder.index(manifest)))
    stream = folder.path / manifest.streams[0].file
    new = make("new")
    for path in (stream, folder.path / manifest.index, folder.path / "backup.json", folder.blob(blob.sha256)):
        whole = path.read_bytes()
        harmed = bytearray(whole)
        harmed[len(harmed) // 2] ^= 0x01
        path.write_bytes(harmed)
        refused = new.synthd("restore", str(folder.path))
        assert (refused.returncode, "damaged" in refused.stderr) == (1, True), path
        assert path.name in refused.stderr
        path.write_bytes(whole)
    # None of them has put anything into the log, so the whole backup can be restored.
    assert new.synthd("restore", str(folder.path)).returncode == 0
    log = (await (await new.as_("bus")).js.stream_info(EVENTS)).state
    assert log.messages == 3
    again = new.synthd("restore", str(folder.path))
    assert (again.returncode, "the cluster is not empty: EVENTS holds 3 messages" in again.stderr) == (1, True)
    assert "Traceback" not in again.stderr
    assert (await (await new.as_("bus")).js.stream_info(EVENTS)).state == log
    nothing = new.synthd("restore", str(tmp_path / "nowhere"))
    assert (nothing.returncode, "there is no backup here" in nothing.stderr) == (1, True)


async def test_a_blob_that_a_job_removes_while_blobs_are_copied_is_not_missed(make, tmp_path):
    """The log is saved anew: the one before named what is gone, the new one says that it has expired."""
    cluster, folder = make("one"), BackupFolder(tmp_path / "backup")
    keys = await with_files(cluster)
    gateway = await cluster.as_("gateway")
    entries = cluster.blobs.entries

    async def entries_while_one_is_deleted():
        # Between the snapshot of the log and the copying.
        if await cluster.blobs.find_bytes(keys[0]):
            event = FileDeleted(requested_by="key_1", uploaded_seq=1)
            await Publisher(gateway).once(event, org="org_a", key="file_0", id="1")
            await cluster.blobs.delete([f"blob://{keys[0]}"])
        async for entry in entries():
            yield entry

    store = Deleting(cluster.blobs.store, cluster.blobs.root, listed=entries_while_one_is_deleted)
    manifest = await save_cluster(await cluster.as_("bus"), store, folder, report=print)
    assert manifest.missing == []
    log = next(stream for stream in manifest.streams if stream.name == EVENTS)
    assert (log.last_seq, manifest.blobs) == (4, 2)


@dataclass(frozen=True, kw_only=True)
class Deleting(BlobStore):
    """A store from which something goes when it is listed."""

    listed: Callable[[], AsyncIterator[tuple[str, int, datetime]]]

    def entries(self) -> AsyncIterator[tuple[str, int, datetime]]:
        return self.listed()


async def queued(bus: Connection, job: str) -> None:
    """Until the job's train task waits in the queue."""
    async with asyncio.timeout(60):
        while True:
            try:
                await bus.js.get_last_msg(WORK, f"work.train.default.*.{job}.0")
            except NotFoundError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_tasks_of_jobs_that_had_not_ended_are_queued_anew(make, tmp_path):
    """A backup holds no task: the services find in the log what is due."""
    old = make("old")
    await provisioned(old.bus)
    await SecretStore(await old.as_("gateway"), secrets_of("gateway")).ensure_api_key(old.key)
    make_model_dir(old.home)
    with ExitStack() as services:
        for name in ("gateway", "validator", "files", "verifier"):
            services.enter_context(old.service(name))
        rows = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 9
        with old.http() as http:
            file = http.post("/api/files", files={"file": ("a.jsonl", rows)}).json()["id"]
            reply = http.post("/api/jobs", json={"config": SFT.replace("file_1", file)})
        job = reply.json()["id"]
        await queued(await old.as_("bus"), job)
        assert old.synthd("backup", str(tmp_path / "backup")).returncode == 0
    await old.destroy()
    # As an earlier version made it, which had no audit stream.
    folder = BackupFolder(tmp_path / "backup")
    manifest = folder.manifest()
    assert manifest is not None
    streams = [stream for stream in manifest.streams if stream.name != AUDIT]
    folder.commit(msgspec.structs.replace(manifest, streams=streams), folder.index(manifest))
    new = make("new")
    restored = new.synthd("restore", str(tmp_path / "backup"))
    assert restored.returncode == 0, restored.stderr
    assert new.synthd("check").stdout == ""
    make_model_dir(new.home)
    with new.service("verifier"):
        await queued(await new.as_("bus"), job)

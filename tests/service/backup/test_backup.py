"""A cluster that is backed up while it works, destroyed, and restored is the cluster that it was."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import msgspec
import pytest
from nats.js.errors import NotFoundError

from synth.backup.folder import BackupFolder
from synth.backup.save import save_cluster
from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.history.job_log import append_decided
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.bus.server.embedded import free_port
from synth.bus.server.topology import EVENTS, WORK
from synth.events import (
    BlobExpired,
    CheckpointSaved,
    FileDeleted,
    FileUploaded,
    Heartbeat,
    JobCreated,
    JobDeleted,
    JobWithdrawn,
    ModelRef,
)
from synth.keys import new_api_key
from tests.keyrings import secrets_of
from tests.service.gateway import job_histories
from tests.service.jobs import SFT, make_model_dir
from tests.service.own_bus import Bus, provisioned
from tests.service.process import environment, running


class Cluster:
    """A bus with its blobs, and a key of a user."""

    def __init__(self, home: Path, key: str) -> None:
        home.mkdir()
        self.home, self.key, self.port = home, key, free_port()
        self.bus = Bus(home)
        self.bus.start()
        self.blobs = BlobStore.open(f"file:{home / 'blobs'}")
        self.opened: list[Connection] = []

    async def as_(self, user: str) -> Connection:
        self.opened.append(await connect(self.bus.settings(user), user))
        return self.opened[-1]

    def service(self, name: str):
        quiet = {"SYNTH_HEARTBEAT_AFTER_S": "3600", "SYNTH_WAITING_AFTER_S": "3600"}
        extra = {"SYNTH_READ_MODEL_PATH": str(self.home / "g.db"), **quiet}
        port = self.port if name == "gateway" else 0
        return running(name, self.bus.settings(name), self.home / f"{name}.log", port=port, **extra)

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30)

    def synthd(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`synthd bus …` as the operator runs it."""
        command = [sys.executable, "-m", "synth.synthd", "bus", *words]
        return subprocess.run(
            command, env=environment(self.bus.settings("bus")), capture_output=True, text=True, timeout=120, check=False
        )

    async def destroy(self) -> None:
        for connection in self.opened:
            await connection.close()
        self.bus.stop()
        shutil.rmtree(self.home)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[str], Cluster]]:
    """Makes a cluster of this name; the same key opens all of them."""
    key, made = new_api_key(), list[Cluster]()

    def new(name: str) -> Cluster:
        made.append(Cluster(tmp_path / name, key))
        return made[-1]

    yield new
    for cluster in made:
        for connection in cluster.opened:
            await connection.close()
        assert cluster.bus.process is not None
        cluster.bus.process.kill()
        cluster.bus.process.wait(10)


async def with_history(cluster: Cluster) -> str:
    """Jobs in several states, a file, checkpoints of which one has expired, and gaps in the log; returns the org."""
    await provisioned(cluster.bus)
    gateway = await cluster.as_("gateway")
    org = (await SecretStore(gateway, secrets_of("gateway")).ensure_api_key(cluster.key)).org
    with cluster.service("gateway"), cluster.http() as http:
        ids = [http.post("/api/jobs", json={"config": f"# {n}"}).json()["id"] for n in range(4)]
        http.post("/api/files", files={"file": ("a.jsonl", b'{"messages": []}\n' * 50)}).raise_for_status()
    # An event that the log forgets leaves a gap.
    for n in range(3):
        event = Heartbeat(state="created")
        await Publisher(gateway).once(event, org=org, key=ids[0], id=f"hb{n}", ttl=1)
    trainer, fence = await job_histories.begin(cluster.as_, org, ids[0])
    for k in (1, 2):
        folder = cluster.home / "made"
        folder.mkdir()
        (folder / "weights").write_bytes(random.Random(k).randbytes(100_000))
        tree, _ = await cluster.blobs.put_tree(f"jobs/{ids[0]}/checkpoints/{k}", folder, move=True)
        ref = ModelRef(id=f"rl:tiny:{ids[0]}:step_{k}", tree=tree)
        saved = CheckpointSaved(step=k, version=k, attempt=1, tree=tree, size=100_000, model=ref)
        await Publisher(trainer).fenced(saved, fence=fence, id=str(k))
        await job_histories.step(trainer, fence, k, of=2)
        if k == 1:
            await Publisher(trainer).fenced(BlobExpired(uris=[tree.uri]), fence=fence, id="e")
            await cluster.blobs.delete([*await cluster.blobs.files_of_tree(tree.uri), tree.uri])
    await job_histories.succeed(trainer, fence, steps=2)
    await job_histories.verify(cluster.as_, org, ids[1])
    deadline = time.monotonic() + 30
    while (await gateway.js.stream_info(EVENTS)).state.num_deleted != 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    return org


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


async def test_a_restored_cluster_is_the_one_that_was_saved(make, tmp_path):
    old = make("old")
    org = await with_history(old)
    with old.service("gateway"):
        before = answers(old)
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
    again = await replay(await new.as_("gateway"), [">"])
    assert [(e.seq, e.time, e.id, e.event) for e in again[: len(events)]] == [
        (e.seq, e.time, e.id, e.event) for e in events
    ]
    assert again[len(events)].seq == events[-1].seq + 1
    assert {key: size async for key, size, _ in new.blobs.entries()} == blobs
    assert org


async def test_what_there_is_of_an_ended_job_is_archived_and_can_be_read_alone(make, tmp_path):
    cluster, folder = make("old"), tmp_path / "archive"
    org = await with_history(cluster)
    [ended] = [e.key for e in await replay(await cluster.as_("gateway"), [f"job.succeeded.{org}.*"])]
    done = cluster.synthd("archive", str(folder), org, ended)
    assert done.returncode == 0, done.stderr
    in_log = await replay(await cluster.as_("gateway"), [f"*.*.{org}.{ended}"])
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(e["seq"], e["type"], e["key"]) for e in lines] == [(e.seq, e.type, ended) for e in in_log]
    assert [e["data"] for e in lines if e["type"] == "train.step"] == [
        msgspec.to_builtins(e.event) for e in in_log if e.type == "train.step"
    ]
    # Of two checkpoints one has expired, which is no loss.
    blobs = {b["key"]: b for line in (folder / "blobs.jsonl").read_text().splitlines() for b in [json.loads(line)]}
    assert set(blobs) == {f"jobs/{ended}/checkpoints/2.manifest.json", f"jobs/{ended}/checkpoints/2/weights"}
    for key, blob in blobs.items():
        body = (folder / "blobs" / key).read_bytes()
        assert (len(body), hashlib.sha256(body).hexdigest()) == (blob["size"], blob["sha256"])
    said = json.loads((folder / "archive.json").read_text())
    assert (said["job"], said["events"], said["blobs"], said["missing"]) == (ended, len(lines), 2, [])
    assert hashlib.sha256((folder / "events.jsonl").read_bytes()).hexdigest() == said["events_sha256"]
    assert folder.stat().st_mode & 0o077 == 0


async def test_what_is_erased_is_in_no_archive_and_hinders_none(make, tmp_path):
    cluster = make("old")
    await provisioned(cluster.bus)
    gateway, org = await cluster.as_("gateway"), "org_a"
    for job in ("job_1", "job_2"):
        for fact in (JobCreated(config="", config_name="a.toml", body_sha256="0"), JobWithdrawn()):
            await append_decided(gateway, org, job, lambda _, fact=fact: fact)
    await Publisher(gateway).once(JobDeleted(requested_by="k"), org=org, key="job_1", id="deleted")
    erased = cluster.synthd("erase", org, "job_1")
    assert erased.returncode == 0, erased.stderr
    refused = cluster.synthd("archive", str(tmp_path / "a"), org, "job_1")
    assert (refused.returncode, "or it is erased" in refused.stderr) == (1, True), refused.stderr
    done = cluster.synthd("archive", str(tmp_path / "a"), org)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    assert [(e["type"], e["key"]) for e in lines] == [
        ("job.created", "job_2"),
        ("job.withdrawn", "job_2"),
        ("job.deleted", "job_1"),
    ]
    (tmp_path / "file").touch()
    nowhere = cluster.synthd("archive", str(tmp_path / "file"), org)
    assert nowhere.returncode == 1
    assert "the archive was not written" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr


async def test_an_archive_is_refused_over_another_and_of_what_goes_on_and_names_what_is_missing(make, tmp_path):
    cluster, folder = make("old"), tmp_path / "archive"
    org = await with_history(cluster)
    refused = cluster.synthd("archive", str(folder), org)
    assert (refused.returncode, "3 jobs have not ended" in refused.stderr) == (1, True), refused.stderr
    nobody = cluster.synthd("archive", str(tmp_path / "b"), org, "job_0")
    assert (nobody.returncode, "has no job job_0" in nobody.stderr) == (1, True), nobody.stderr
    assert "Traceback" not in refused.stderr + nobody.stderr
    [ended] = [e.key for e in await replay(await cluster.as_("gateway"), [f"job.succeeded.{org}.*"])]
    lost = f"jobs/{ended}/checkpoints/2/weights"
    await cluster.blobs.delete([f"blob://{lost}"])
    done = cluster.synthd("archive", str(tmp_path / "c"), org, ended)
    assert f"missing in the cluster: {lost}" in done.stderr
    assert json.loads((tmp_path / "c" / "archive.json").read_text())["missing"] == [lost]
    again = cluster.synthd("archive", str(tmp_path / "c"), org, ended)
    assert (again.returncode, "is not empty" in again.stderr) == (1, True), again.stderr


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

    store = Deleting(cluster.blobs.store, cluster.blobs.root, entries_while_one_is_deleted)
    manifest = await save_cluster(await cluster.as_("bus"), store, folder, report=print)
    assert manifest.missing == []
    log = next(stream for stream in manifest.streams if stream.name == EVENTS)
    assert (log.last_seq, manifest.blobs) == (4, 2)


@dataclass(frozen=True)
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
    new = make("new")
    restored = new.synthd("restore", str(tmp_path / "backup"))
    assert restored.returncode == 0, restored.stderr
    make_model_dir(new.home)
    with new.service("verifier"):
        await queued(await new.as_("bus"), job)

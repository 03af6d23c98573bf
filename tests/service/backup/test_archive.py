"""A job that ended is archived, and the archive can be read without a cluster."""

from __future__ import annotations

import hashlib
import json

import msgspec

from synth.bus.history.job_log import append_decided
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.events import (
    JobCreated,
    JobDeleted,
    JobWithdrawn,
)
from tests.service.backup.clusters import with_history
from tests.service.own_bus import provisioned


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

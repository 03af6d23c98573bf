"""Copies the data of a job that has ended, or of an organisation, into a folder of its own, which is kept when the data
is erased in the cluster.

The folder can be read without Synth. `events.jsonl` has the events, a line each in their order; `blobs/` the blobs
that they name, each below its own address; `blobs.jsonl` their sizes and digests; `archive.json`, which is written
last, the contents of the folder. An archive cannot be restored into a cluster: its sequences belong to another log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.msg import Msg
from obstore.exceptions import BaseError

from synth.backup.named_blobs import NamedBlobs
from synth.blobs import BlobMissing, BlobStore, Manifest, blob_key
from synth.bus.connection import Connection
from synth.bus.recorded import Recorded, from_delivery
from synth.bus.replay import read_stream
from synth.errors import UserError
from synth.events import BlobRef, JobCreated
from synth.jobs.lifecycle import TERMINAL, JobStatus

Report = Callable[[str], None]

_VERSION = 1
_TREE = ".manifest.json"


class ArchivedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `events.jsonl`. data: the event as it is in the log (docs/events.md)."""

    seq: int
    time: datetime
    type: str
    org: str
    key: str
    data: Any


class ArchivedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `blobs.jsonl`. key: its path below `blobs/`."""

    key: str
    size: int
    sha256: str


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """`archive.json`. missing: blobs that the events name, that nothing has removed, and that are not in the store."""

    version: int = _VERSION
    org: str
    job: str | None
    taken_at: datetime
    events: int
    events_sha256: str
    blobs: int
    bytes: int
    blobs_sha256: str
    missing: list[str]


async def archive(
    bus: Connection, blobs: BlobStore, org: str, job: str | None, folder: Path, *, report: Report
) -> Archive:
    """Write the archive of a job, or of an organisation with its files, without erased data.

    Raises `UserError` if the folder is not empty or cannot be written, if the log has no events, and while a job has
    not ended.
    """
    try:
        return await _write(bus, blobs, org, job, folder, report)
    except (OSError, BaseError, msgspec.DecodeError) as error:
        what, fix = f"the archive was not written: {error}", "mend that, remove what is in the folder, and run it again"
        raise _refused(what, expected="a folder, and blobs that can be read", fix=fix) from error


async def _write(bus: Connection, blobs: BlobStore, org: str, job: str | None, folder: Path, report: Report) -> Archive:
    if folder.exists() and any(folder.iterdir()):
        raise _refused(
            f"{folder} is not empty", expected="a folder of its own for each archive", fix="name another one"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    log_file = folder / "events.jsonl"
    named, jobs, written = NamedBlobs(), dict[str, JobStatus](), _Lines(log_file)
    with written:
        async for message, event in _events(bus, f"*.*.{org}.{job or '*'}"):
            if isinstance(event.event, JobCreated):
                jobs[event.key] = JobStatus()
            # An erased job leaves only the fact that it was deleted.
            if event.type.startswith("job.") and event.key in jobs:
                jobs[event.key].add(event.type)
            named.add(event.key, event.event)
            written.add(_line(message, event))
    live = [id for id, status in jobs.items() if status.state not in TERMINAL]
    there = written.count if job is None else len(jobs)
    if live or not there:
        log_file.unlink()
    if not there:
        what = f"the log has nothing of {org}" if job is None else f"the log has no job {job} of {org}, or it is erased"
        raise _refused(what, expected="ids as `synthctl jobs ls` has them, of what is not erased yet")
    if live:
        raise _refused(
            f"{len(live)} jobs have not ended: {', '.join(live[:3])}{' …' if len(live) > 3 else ''}",
            expected="jobs that have ended",
            fix="wait for them, or cancel them: synthctl jobs cancel JOB",
        )
    report(f"{written.count} events are written")
    copied = _Lines(folder / "blobs.jsonl")
    with copied:
        size, missing = await _copy_blobs(blobs, named, folder / "blobs", copied)
    made = Archive(
        org=org,
        job=job,
        taken_at=datetime.now(UTC),
        events=written.count,
        events_sha256=written.sha256,
        blobs=copied.count,
        bytes=size,
        blobs_sha256=copied.sha256,
        missing=missing,
    )
    last = _Lines(folder / "archive.json")
    with last:
        last.add(msgspec.json.format(msgspec.json.encode(made), indent=2))
    return made


class _Lines:
    """A file of lines, which is on the disk when it is closed, and its digest."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self.count = 0

    def add(self, line: bytes) -> None:
        self._digest.update(line + b"\n")
        self._file.write(line + b"\n")
        self.count += 1

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


async def _events(bus: Connection, subject: str) -> AsyncGenerator[tuple[Msg, Recorded]]:
    """Yield the current events under a subject, in the order of the log."""
    async for message in read_stream(bus.nc, [subject]):
        yield message, from_delivery(message)


def _line(message: Msg, event: Recorded) -> bytes:
    line = ArchivedEvent(
        seq=event.seq, time=event.time, type=event.type, org=event.org, key=event.key, data=msgspec.Raw(message.data)
    )
    return msgspec.json.encode(line)


async def _copy_blobs(blobs: BlobStore, named: NamedBlobs, folder: Path, copied: _Lines) -> tuple[int, list[str]]:
    """Copy every named blob, and the files of trees. Returns their bytes, and the keys that are missing."""
    total, missing = 0, list[str]()
    waiting = list(named.digests)
    seen = set(waiting)
    while waiting:
        key = waiting.pop()
        try:
            blob = await _copy_blob(blobs, key, folder)
        except BlobMissing:
            blob = None
        if blob is None or blob.sha256 not in named.digests[key]:
            if blob is not None:
                (folder / key).unlink()
            if not named.may_be_gone(key):
                missing.append(key)
            continue
        total += blob.size
        copied.add(msgspec.json.encode(blob))
        if key.endswith(_TREE):
            for ref in msgspec.json.decode((folder / key).read_bytes(), type=Manifest).files.values():
                inner = ref.uri.removeprefix("blob://")
                named.digests[inner].add(ref.sha256)
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
    return total, sorted(missing)


async def _copy_blob(blobs: BlobStore, key: str, folder: Path) -> ArchivedBlob:
    """Copy a blob. Raises `BlobMissing`, also for an address that no blob can have."""
    uri = f"blob://{key}"
    target = folder / blob_key(uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        try:
            async for piece in blobs.stream(BlobRef(uri=uri, size=0, sha256="")):
                digest.update(piece)
                size += len(piece)
                out.write(piece)
        except BlobMissing:
            target.unlink()
            raise
        out.flush()
        os.fsync(out.fileno())
    return ArchivedBlob(key=key, size=size, sha256=digest.hexdigest())


def _refused(what: str, *, expected: str, fix: str = "") -> UserError:
    return UserError(what, expected=expected, fix=fix)

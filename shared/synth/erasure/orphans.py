"""Finds blobs that nothing refers to: their writers died after the write and before the announcement.

Invariants. A blob is an orphan only when no event names it, no manifest that an event names does, its job has ended or
is not in the log, and it is older than a writer could still be about to announce. The blobs are listed before the log
is read, so that blobs which are announced meanwhile are known; blobs which are written meanwhile are not listed. Only
blobs of jobs and uploads are checked: pictures are named by the rows of files, and answers of judges by no event. A
damaged event names the URIs in its text, and all URIs that begin with one of them, as its text may be cut off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from synth.backup.named_blobs import NamedBlobs
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.recorded import UnknownEvent, from_delivery
from synth.bus.replay import read_stream
from synth.errors import UserError
from synth.jobs.lifecycle import TERMINAL_FACTS

_TREE = ".manifest.json"
_URI = re.compile(r'blob://([^"\\\s]+)')


@dataclass(frozen=True)
class Orphan:
    """A blob that nothing refers to. size: bytes."""

    uri: str
    size: int


async def find_orphans(bus: Connection, blobs: BlobStore, *, older_than: timedelta) -> list[Orphan]:
    """Return the blobs that nothing refers to and that are older than this, in the order of their keys.

    Raises `UserError` if the log holds events of a newer version, which may name any of them.
    """
    before = datetime.now(UTC) - older_than
    listed = {key: size async for key, size, modified in blobs.entries() if modified < before and _is_looked_at(key)}
    if not listed:
        return []
    named, running, damaged = await _read_log(bus)
    # The manifest of a tree that an event names refers to every blob in the folder of the tree.
    trees = tuple(f"{key.removesuffix(_TREE)}/" for key in named.digests if key.endswith(_TREE)) + damaged
    return [
        Orphan(f"blob://{key}", size)
        for key, size in sorted(listed.items())
        if key not in named.digests and _job_of(key) not in running and not key.startswith(trees)
    ]


async def delete_orphans(blobs: BlobStore, orphans: list[Orphan], *, older_than: timedelta) -> int:
    """Delete orphans; returns how many. One that was written again meanwhile stays: its writer may yet announce it."""
    before, deleted = datetime.now(UTC) - older_than, 0
    for orphan in orphans:
        written = await blobs.written_at(orphan.uri)
        if written is not None and written < before:
            await blobs.delete([orphan.uri])
            deleted += 1
    return deleted


def _is_looked_at(key: str) -> bool:
    parts = key.split("/")
    return parts[0] == "jobs" or (parts[0] == "orgs" and len(parts) > 2 and parts[2] == "files")


def _job_of(key: str) -> str:
    return key.split("/")[1] if key.startswith("jobs/") else ""


async def _read_log(bus: Connection) -> tuple[NamedBlobs, set[str], tuple[str, ...]]:
    """Return the blobs that the log names, the jobs that have not ended, and the prefixes that damaged events name."""
    named, running, damaged = NamedBlobs(), set[str](), set[str]()
    async for message in read_stream(bus.nc, [">"]):
        recorded = await bus.schemas.judge(from_delivery(message))
        if isinstance(recorded.event, UnknownEvent):
            if recorded.event.newer:
                raise _unreadable(recorded.type, recorded.seq)
            text = msgspec.json.encode(recorded.event.body).decode()
            damaged.update(uri.removesuffix(_TREE) for uri in _URI.findall(text))
        named.add(recorded.key, recorded.event)
        if recorded.type == "job.created":
            running.add(recorded.key)
        elif recorded.type in TERMINAL_FACTS:
            running.discard(recorded.key)
    return named, running, tuple(damaged)


def _unreadable(type_: str, seq: int) -> UserError:
    return UserError(
        f"the {type_} at {seq} in the log cannot be read by this version, and may name any blob",
        expected="a log of this version or of an earlier one",
        fix="run the version of the cluster's services",
        where="EVENTS",
    )

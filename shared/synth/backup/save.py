"""Backs a running cluster up: the log as it was at one moment, and every blob that it names.

A blob is written before the event that names it, so the log is saved first. If a blob
is removed while the blobs are copied, the saved log names it and the new one does not: the log is then saved again, and
the copied blobs stay.

The queue of tasks is not saved: it follows from the log (`load`). Nor are the buckets whose entries expire.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from synth.backup.folder import BackupFolder, BackupManifest, SavedBlob
from synth.backup.named_blobs import NamedBlobs, read_named_blobs
from synth.backup.streams import StreamFile, save_stream
from synth.blobs import BlobMissing, BlobStore, Manifest
from synth.bus.connection import Connection
from synth.bus.server.topology import AUDIT, DEAD, EVENTS, SECRET_BUCKETS
from synth.errors import Transient
from synth.events import BlobRef

#: In this order: a key is stored before an event names it.
STREAMS = (EVENTS, *(f"KV_{bucket}" for bucket in SECRET_BUCKETS), DEAD, AUDIT)
#: Rounds of saving the log; each but the last met a job that removed a blob which its log named.
_ROUNDS = 8
_TREE = ".manifest.json"

Report = Callable[[str], None]


@dataclass
class _Copies:
    """The blobs that are in the folder, by their keys. known: the blobs of the backup before."""

    folder: BackupFolder
    blobs: BlobStore
    known: dict[str, SavedBlob]
    saved: dict[str, SavedBlob] = field(default_factory=dict[str, SavedBlob])
    bytes_copied: int = 0

    async def copy_all(self) -> None:
        """Copy every blob of the store that is not here yet; forget blobs that the store no longer has."""
        result: dict[str, SavedBlob] = {}
        async for key, size, modified in self.blobs.entries():
            before = self.saved.get(key) or self.known.get(key)
            if (
                before is not None
                and (before.size, before.modified) == (size, modified)
                and self.folder.blob(before.sha256).exists()
            ):
                result[key] = before
                continue
            try:
                sha256, copied = await self.folder.put_blob(self._pieces(key, size))
            except BlobMissing:
                continue  # removed since it was listed: `lacking` checks the log for it
            self.bytes_copied += copied
            result[key] = SavedBlob(key=key, size=copied, sha256=sha256, modified=modified)
        self.saved = result

    def lacking(self, named: NamedBlobs) -> list[str]:
        """Return the keys that the log names and that are not here with the digest that it names."""
        for key in [key for key in named.digests if key.endswith(_TREE)]:
            saved = self.saved.get(key)
            if saved is None or saved.sha256 not in named.digests[key]:
                continue
            for ref in msgspec.json.decode(self.folder.blob(saved.sha256).read_bytes(), type=Manifest).files.values():
                if not named.may_be_gone(key):
                    named.digests[ref.uri.removeprefix("blob://")].add(ref.sha256)
        return sorted(key for key, digests in named.digests.items() if self._lacks(key, digests, named))

    def _lacks(self, key: str, digests: set[str], named: NamedBlobs) -> bool:
        saved = self.saved.get(key)
        return not named.may_be_gone(key) and (saved is None or saved.sha256 not in digests)

    def _pieces(self, key: str, size: int) -> AsyncIterator[bytes]:
        return self.blobs.stream(BlobRef(uri=f"blob://{key}", size=size, sha256=""))


async def save_cluster(bus: Connection, blobs: BlobStore, folder: BackupFolder, *, report: Report) -> BackupManifest:
    """Back a cluster up into a folder; unchanged blobs of an earlier backup are not copied again.

    Raises `Transient` when the bus breaks off, or when jobs remove blobs faster than they are copied.
    """
    folder.create()
    os.chmod(folder.path, 0o700)
    before = folder.manifest()
    known = {blob.key: blob for blob in folder.index(before)} if before is not None else {}
    copies = _Copies(folder, blobs, known)
    lacking: list[str] | None = None
    for _ in range(_ROUNDS):
        streams = [await save_stream(bus, name, folder.new_file(f"{name}.stream")) for name in STREAMS]
        log = next(stream for stream in streams if stream.name == EVENTS)
        report(f"saved the log up to event {log.last_seq}")
        await copies.copy_all()
        report(f"{len(copies.saved)} blobs are saved, {copies.bytes_copied} bytes of them were copied now")
        earlier, lacking = lacking, copies.lacking(await read_named_blobs(bus, log.last_seq))
        # Blobs that are still missing after a second read of the log were missing in the cluster.
        if not lacking or lacking == earlier:
            return _commit(folder, streams, copies, lacking)
    raise Transient("jobs remove blobs while they are copied; try again, or pause the jobs that run")


def _commit(folder: BackupFolder, streams: list[StreamFile], copies: _Copies, missing: list[str]) -> BackupManifest:
    saved = list(copies.saved.values())
    index, sha256 = folder.write_index(saved)
    manifest = BackupManifest(
        taken_at=datetime.now(UTC),
        streams=streams,
        index=index,
        index_sha256=sha256,
        blobs=len(saved),
        bytes=sum(blob.size for blob in saved),
        missing=missing,
    )
    folder.commit(manifest, saved)
    return manifest

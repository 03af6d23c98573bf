"""The folder of a backup: its layout, and the manifest that makes it one.

Invariants. Blobs lie under their sha256, and are never changed; streams and the index under names of their own for each
backup. The manifest is replaced last, so a backup that was killed leaves the one before it whole.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from synth.backup.streams import StreamFile
from synth.errors import UserError

_VERSION = 1
_MANIFEST = "backup.json"
_PIECE = 4 << 20


class SavedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob of the store. modified: the time that the store reported when the blob was saved."""

    key: str
    size: int
    sha256: str
    modified: datetime


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole backup. index: the file that lists its blobs. missing: blobs that the log names and the store lacked."""

    version: int = _VERSION
    taken_at: datetime
    streams: list[StreamFile]
    index: str
    index_sha256: str
    blobs: int
    bytes: int
    missing: list[str] = []


class _SignedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest as it is written, with its own digest."""

    sha256: str
    manifest: msgspec.Raw


@dataclass(frozen=True)
class BackupFolder:
    """The folder. Its files are readable by their owner only: they hold everybody's data."""

    path: Path

    def create(self) -> None:
        """Make the folder if it does not exist."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.path / "blobs").mkdir(exist_ok=True)

    def new_file(self, name: str) -> Path:
        """Return the path of a new file of this backup."""
        return self.path / f"{name}.{uuid.uuid4().hex[:12]}"

    def blob(self, sha256: str) -> Path:
        """Return the path of the blob with this digest."""
        return self.path / "blobs" / sha256[:2] / sha256

    def manifest(self) -> BackupManifest | None:
        """Return the backup that the folder holds; None without one. Raises `UserError` for a damaged manifest."""
        try:
            body = (self.path / _MANIFEST).read_bytes()
        except FileNotFoundError:
            return None
        try:
            signed = msgspec.json.decode(body, type=_SignedManifest)
            if hashlib.sha256(bytes(signed.manifest)).hexdigest() != signed.sha256:
                raise self.damaged(_MANIFEST, "its sha256 is not the one that it names")
            manifest = msgspec.json.decode(signed.manifest, type=BackupManifest)
        except msgspec.DecodeError as error:
            raise self.damaged(_MANIFEST, str(error)) from error
        if manifest.version != _VERSION:
            raise UserError(
                f"the backup is of version {manifest.version}",
                expected=f"version {_VERSION}",
                fix="restore it with the version of Synth that made it",
                where=str(self.path / _MANIFEST),
            )
        return manifest

    def index(self, manifest: BackupManifest) -> Iterator[SavedBlob]:
        """Yield the blobs of a backup. Raises `UserError` when the list has changed since it was written."""
        path = self.path / manifest.index
        self.check(path, manifest.index_sha256)
        with path.open("rb") as lines:
            for line in lines:
                yield msgspec.json.decode(line, type=SavedBlob)

    def check(self, path: Path, sha256: str) -> None:
        """Raise `UserError` unless the file has this digest."""
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        except FileNotFoundError as error:
            raise self.damaged(str(path.relative_to(self.path)), "it is not there") from error
        if digest.hexdigest() != sha256:
            raise self.damaged(str(path.relative_to(self.path)), "its sha256 differs from the manifest's")

    def damaged(self, name: str, why: str) -> UserError:
        """Return the error of a backup whose content has changed since it was written."""
        return UserError(
            f"the backup is damaged: {why}",
            expected="the file as the backup wrote it",
            fix="take another copy of the backup",
            where=str(self.path / name),
        )

    async def put_blob(self, pieces: AsyncIterator[bytes]) -> tuple[str, int]:
        """Write a blob under its digest; returns that and the size."""
        partial = self.path / "blobs" / f".{uuid.uuid4().hex}"
        digest, size = hashlib.sha256(), 0
        try:
            with partial.open("wb") as out:
                async for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            target = self.blob(digest.hexdigest())
            target.parent.mkdir(exist_ok=True)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return digest.hexdigest(), size

    def write_index(self, blobs: Iterable[SavedBlob]) -> tuple[str, str]:
        """Write the list of the blobs; returns the file's name and digest."""
        path, digest = self.new_file("blobs.jsonl"), hashlib.sha256()
        with path.open("wb") as out:
            for blob in blobs:
                line = msgspec.json.encode(blob) + b"\n"
                digest.update(line)
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
        return path.name, digest.hexdigest()

    def commit(self, manifest: BackupManifest, kept: Iterable[SavedBlob]) -> None:
        """Make this the folder's backup, then remove files that only an earlier one needed."""
        partial = self.new_file(_MANIFEST)
        body = msgspec.json.encode(manifest)
        signed = _SignedManifest(sha256=hashlib.sha256(body).hexdigest(), manifest=msgspec.Raw(body))
        partial.write_bytes(msgspec.json.encode(signed))
        for path in (*(self.path / s.file for s in manifest.streams), partial):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(self.path / _MANIFEST)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        needed = {manifest.index, *(stream.file for stream in manifest.streams)}
        for path in (*self.path.glob("*.stream.*"), *self.path.glob("blobs.jsonl.*"), *self.path.glob("backup.json.*")):
            if path.name not in needed:
                path.unlink()
        digests = {blob.sha256 for blob in kept}
        for path in (self.path / "blobs").glob("*/*"):
            if path.name not in digests:
                path.unlink()

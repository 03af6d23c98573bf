"""The blob store: datasets, batches, weights and checkpoints, by reference.

Invariants. A blob is written whole (on a local disk: fsync, then rename) before its address is published; a reader
checks its size and sha256. A tree is a set of files named by a manifest that is written last, so a tree that can be
named is complete. One API for a local folder, S3, GCS and Azure (obstore).
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec
import obstore
from obstore.store import LocalStore, from_url

from synth.blobs.identity import TOP_FOLDERS, identity_key, read_local
from synth.blobs.local import INCOMING, remove_empty_folders, take_file, write_bytes
from synth.errors import Permanent, Transient
from synth.events import BlobRef

_CHUNK = 4 << 20
_ABSENT_DELAY_S = 15.0
# Beside the tree, not in it: a checkpoint has a manifest.json of its own.
_MANIFEST = ".manifest.json"
_IDENTITIES = frozenset(map(identity_key, TOP_FOLDERS))


class BlobMissing(Permanent):
    """A blob that an event named is not there (it has expired, or the store is not the cluster's)."""


class BlobCorrupt(Permanent):
    """A blob's bytes have changed since they were written."""


class StoreAbsent(Transient):
    """The folder of a local store is not there, or is not the cluster's: its disk is not mounted (yet).

    for_s: for how many seconds this process has found it so. other: whose the folder is, if it is another cluster's.
    """

    def __init__(self, folder: Path, *, for_s: float, other: str = "") -> None:
        what = f"the blob store's folder {folder} is empty or not there: is its disk mounted?"
        if other:
            what = f"the blob store's folder {folder} is the store {other}, of another cluster: which disk is mounted?"
        super().__init__(what, delay=_ABSENT_DELAY_S)
        self.for_s = for_s


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a tree, by their names in it."""

    files: dict[str, BlobRef]

    @property
    def size(self) -> int:
        return sum(ref.size for ref in self.files.values())


def blob_key(uri: str) -> str:
    """Return a blob's key in its store. Raises `BlobMissing` for an address outside the store, which is an attack."""
    key = uri.removeprefix("blob://")
    if _leads_out(key):
        raise BlobMissing(f"{uri!r} is no address of a blob")
    return key


def _leads_out(path: str) -> bool:
    return "\0" in path or any(part in ("", ".", "..") for part in path.split("/"))


@dataclass(frozen=True)
class BlobStore:
    """The cluster's blobs. root: their folder on the local disk, None when the store is remote.

    id: of the store, in each of its top folders; a folder without it is absent. "": not known, so a folder is absent if
    it was never written.
    """

    store: obstore.store.ObjectStore
    root: Path | None
    id: str = ""
    #: First folders of keys that this process has seen, and since when (by the monotonic clock) others are absent.
    _present: set[str] = field(default_factory=set[str], repr=False, compare=False)
    _absent: dict[str, float] = field(default_factory=dict[str, float], repr=False, compare=False)

    @classmethod
    def open(cls, url: str) -> BlobStore:
        """Open a store: `file:DIR` for a local folder, else a URL of obstore (`s3://…`, `gs://…`, `az://…`)."""
        if url.startswith("file:"):
            root = Path(url.removeprefix("file:").removeprefix("//")).absolute()
            root.mkdir(parents=True, exist_ok=True)
            return cls(LocalStore(prefix=str(root)), root)
        return cls(from_url(url), None)

    def local_folders(self) -> list[Path]:
        """Return the folders of a local store that may lie on disks of their own."""
        return [] if self.root is None else [self.root, *filter(Path.is_dir, self.root.iterdir())]

    async def put_bytes(self, key: str, body: bytes, *, sha256: str | None = None) -> BlobRef:
        """Write a small blob whole. sha256: of a body that was hashed already."""
        blob_key(key)
        self._check_present(key)
        ref = BlobRef(uri=f"blob://{key}", size=len(body), sha256=sha256 or hashlib.sha256(body).hexdigest())
        if self.root is not None:
            await asyncio.to_thread(write_bytes, self.root, key, body)
            self._find_absent(key)  # it is there now
        else:
            await obstore.put_async(self.store, key, body)
        return ref

    async def put_file(self, key: str, path: Path, *, move: bool = False, sha256: str | None = None) -> BlobRef:
        """Write a file's content as a blob.

        move: take the file itself (a rename on the same disk). sha256: of a file that was hashed as it was written.
        """
        blob_key(key)
        self._check_present(key)
        size = path.stat().st_size
        sha256 = sha256 or (await asyncio.to_thread(_digest, path))[1]
        if self.root is not None:
            await asyncio.to_thread(take_file, self.root, key, path, move=move)
            self._find_absent(key)
        else:
            await obstore.put_async(self.store, key, path)
            if move:
                path.unlink()
        return BlobRef(uri=f"blob://{key}", size=size, sha256=sha256)

    async def put_tree(
        self, prefix: str, directory: Path, *, move: bool = False, sha256: Mapping[str, str] | None = None
    ) -> tuple[BlobRef, Manifest]:
        """Write a directory's files below `prefix`, then their manifest, whose reference stands for the tree.

        The manifest is beside the folder, not in it: a folder that is read back holds only its own files.
        sha256: of files that were hashed as they were written, by their names in the directory.
        """
        names = sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())
        known = sha256 or {}
        files = {
            name: await self.put_file(f"{prefix}/{name}", directory / name, move=move, sha256=known.get(name))
            for name in names
        }
        manifest = Manifest(files=files)
        ref = await self.put_bytes(f"{prefix}{_MANIFEST}", msgspec.json.encode(manifest))
        if move:
            await asyncio.to_thread(shutil.rmtree, directory)
        return ref, manifest

    async def get_bytes(self, ref: BlobRef) -> bytes:
        """Read a blob whole. Raises `BlobMissing`, `BlobCorrupt`."""
        if ref.part is not None:
            body = await self.get_range(ref, 0, ref.size)
        else:
            try:
                body = bytes(await (await obstore.get_async(self.store, blob_key(ref.uri))).bytes_async())
            except FileNotFoundError as error:
                raise self._missing(ref.uri) from error
        if hashlib.sha256(body).hexdigest() != ref.sha256:
            raise BlobCorrupt(f"{ref.uri} is not what was written (sha256 differs)")
        return body

    async def find_bytes(self, key: str) -> bytes | None:
        """Return the whole blob under this key; None without one. For blobs that no event names, such as a cache."""
        try:
            return bytes(await (await obstore.get_async(self.store, key)).bytes_async())
        except FileNotFoundError:
            return None

    async def get_range(self, ref: BlobRef, start: int, end: int) -> bytes:
        """Read the bytes from `start` up to `end` of a blob; its digest is not checked. Raises `BlobMissing`."""
        if (end := min(end, ref.size)) <= start:
            return b""
        place = 0 if ref.part is None else ref.part.offset
        start, end, key = place + start, place + end, blob_key(ref.uri)
        try:
            if self.root is not None:
                return await asyncio.to_thread(_read_range, self.root / key, start, end)
            return bytes(await obstore.get_range_async(self.store, key, start=start, end=end))
        except FileNotFoundError as error:
            raise self._missing(ref.uri) from error

    async def stream(self, ref: BlobRef) -> AsyncIterator[bytes]:
        """Read a blob in pieces, at constant memory; a digest of "" is not checked.

        Raises `BlobMissing`, and `BlobCorrupt` in place of the last piece.
        """
        digest, last = hashlib.sha256(), None
        async for piece in self._stream(ref):
            if last is not None:
                yield last
            await asyncio.to_thread(digest.update, piece)
            last = piece
        if ref.sha256 and digest.hexdigest() != ref.sha256:
            raise BlobCorrupt(f"{ref.uri} is not what was written (sha256 differs)")
        if last is not None:
            yield last

    async def _stream(self, ref: BlobRef) -> AsyncIterator[bytes]:
        if ref.part is not None:
            yield await self.get_range(ref, 0, ref.size)
            return
        if self.root is not None:
            # obstore reads a local file in small pieces, for thirty times the CPU time.
            try:
                async for piece in _pieces(self.root / blob_key(ref.uri)):
                    yield piece
            except FileNotFoundError as error:
                raise self._missing(ref.uri) from error
            return
        try:
            reply = await obstore.get_async(self.store, blob_key(ref.uri))
        except FileNotFoundError as error:
            raise self._missing(ref.uri) from error
        async for chunk in reply.stream(min_chunk_size=_CHUNK):
            yield bytes(chunk)

    async def manifest(self, tree: BlobRef) -> Manifest:
        """Return the files of a tree. Raises `BlobMissing`, `BlobCorrupt`."""
        result = msgspec.json.decode(await self.get_bytes(tree), type=Manifest)
        if outside := [name for name in result.files if _leads_out(name)]:
            raise BlobCorrupt(f"{tree.uri} names a file outside its folder: {outside[0]!r}")
        return result

    async def fetch(self, ref: BlobRef, path: Path, *, progress: Callable[[int], None] = lambda done: None) -> Path:
        """Return a blob as a local file, checked. On a local store it is the blob itself: read it, never write it.

        progress: called with the number of bytes that were checked (local), or that have arrived (remote), from
        this thread or another.
        """
        if self.root is not None and ref.part is None:
            local = self.root / blob_key(ref.uri)
            if not local.exists():
                raise self._missing(ref.uri)
            await _check(local, ref, progress)
            return local
        if path.exists() and await asyncio.to_thread(_digest, path) == (ref.size, ref.sha256):
            return path
        # Never written in place: a process that has the file mapped would crash.
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with partial.open("wb") as out:
                done = 0
                async for chunk in self.stream(ref):
                    await asyncio.to_thread(out.write, chunk)
                    done += len(chunk)
                    progress(done)
            await _check(partial, ref)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    async def fetch_tree(self, tree: BlobRef, directory: Path, *, without: str | None = None) -> Path:
        """Return a tree as a local directory, checked; on a local store it is the stored one: read it only.

        without: a folder of it that is not needed.
        """
        files = (await self.manifest(tree)).files
        needed = {name: ref for name, ref in files.items() if without is None or not name.startswith(f"{without}/")}
        if self.root is not None:
            for ref in needed.values():
                await self.fetch(ref, directory)
            return self.root / blob_key(tree.uri).removesuffix(_MANIFEST)
        for name, ref in needed.items():
            await self.fetch(ref, directory / name)
        return directory

    async def delete(self, uris: list[str]) -> None:
        """Remove blobs; a missing one is no error. A local folder is removed with its last blob."""
        for uri in uris:
            if _leads_out(key := uri.removeprefix("blob://")):
                continue  # No blob can be there, and the others must be removed all the same.
            self._check_present(key)
            with suppress(FileNotFoundError):
                await obstore.delete_async(self.store, key)
            if self.root is not None:
                await asyncio.to_thread(remove_empty_folders, self.root, key)

    async def written_at(self, uri: str) -> datetime | None:
        """Return when a blob was written; None if it does not exist."""
        try:
            return (await obstore.head_async(self.store, blob_key(uri)))["last_modified"]
        except FileNotFoundError:
            return None

    async def uris_below(self, folder: str) -> list[str]:
        """Return the blobs of a folder and of its subfolders; none if it does not exist."""
        return [f"blob://{key}" async for key, _, _ in self.below(folder)]

    async def uris_older(self, folder: str, than: datetime) -> list[str]:
        """Return the blobs of `uris_below` that were written before this moment."""
        return [f"blob://{key}" async for key, _, written_at in self.below(folder) if written_at < than]

    async def entries(self) -> AsyncIterator[tuple[str, int, datetime]]:
        """Yield every blob of the store: key, size, when it was written."""
        async for entry in self.below(None):
            if f"/{INCOMING}/" not in f"/{entry[0]}":
                yield entry

    async def below(self, folder: str | None) -> AsyncIterator[tuple[str, int, datetime]]:
        """Yield each blob of a folder and of its subfolders: key, size, when it was written. Raises `StoreAbsent`."""
        every = TOP_FOLDERS if self.id else tuple(self._present)
        for first in every if folder is None else [folder]:
            self._check_present(first)
        pages = obstore.list(self.store, prefix=folder)  # pyright: ignore[reportUnknownMemberType]
        async for page in pages:
            for item in page:
                if item["path"] not in _IDENTITIES:
                    yield item["path"], item["size"], item["last_modified"]

    def _missing(self, uri: str) -> BlobMissing | StoreAbsent:
        """Return the error for a blob that an event names and that does not exist."""
        return self._find_absent(blob_key(uri)) or BlobMissing(f"{uri} is not in the blob store")

    def _check_present(self, key: str) -> None:
        """Raise `StoreAbsent` if the folder must exist: its mount would later hide a blob that is written now."""
        first = key.partition("/")[0]
        must_exist = first in self._present or (bool(self.id) and first in TOP_FOLDERS)
        if (absent := self._find_absent(key)) is not None and must_exist:
            raise absent

    def _find_absent(self, key: str) -> StoreAbsent | None:
        if self.root is None:
            return None
        first = key.partition("/")[0]
        other = ""
        if self.id and first in TOP_FOLDERS:
            other = read_local(self.root, first)
            is_present = other == self.id
        else:
            # The first writer makes this folder, and no code removes it.
            is_present = (self.root / first / INCOMING).is_dir()
        if is_present:
            self._present.add(first)
            self._absent.pop(first, None)
            return None
        since = self._absent.setdefault(first, time.monotonic())
        return StoreAbsent(self.root / first, for_s=time.monotonic() - since, other=other)

    async def identities(self) -> dict[str, str]:
        """Return the id in each top folder; "" without one."""
        return {folder: await self.identity(folder) for folder in TOP_FOLDERS}

    async def identity(self, folder: str) -> str:
        """Return the id in a top folder; "" without one."""
        return (await self.find_bytes(identity_key(folder)) or b"").decode(errors="replace").strip()

    async def identify(self, id: str) -> None:
        """Write the id into each top folder that has none."""
        for folder, known in (await self.identities()).items():
            if not known:
                await self.put_bytes(identity_key(folder), id.encode())

    async def verify(self, ref: BlobRef) -> None:
        """Read a blob, and check its digest. Raises `BlobMissing`, `BlobCorrupt`."""
        async for _ in self.stream(ref):
            pass

    async def files_of_tree(self, tree: str) -> list[str]:
        """Return the blobs of a tree, from the URI of its manifest, which is not among them."""
        return await self.uris_below(tree.removeprefix("blob://").removesuffix(_MANIFEST))


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            yield piece


def _read_range(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def _digest(path: Path, progress: Callable[[int], None] = lambda done: None) -> tuple[int, str]:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            done += len(piece)
            progress(done)
        return path.stat().st_size, digest.hexdigest()


async def _check(path: Path, ref: BlobRef, progress: Callable[[int], None] = lambda done: None) -> None:
    size, sha256 = await asyncio.to_thread(_digest, path, progress)
    if (size, sha256) != (ref.size, ref.sha256):
        raise BlobCorrupt(f"{ref.uri} is not what was written ({size} bytes, expected {ref.size}; or sha256 differs)")

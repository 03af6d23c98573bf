"""Many small blobs in one: on a local disk each file costs two fsyncs, in a remote store each blob costs a request."""

from __future__ import annotations

import asyncio
import hashlib

from synth.blobs.store import BlobStore
from synth.events import BlobRef
from synth.events.references import PackedPart

#: Bytes of a pack. A larger body is a blob of its own: its write costs more than its fsync.
_LARGEST_PACK = 1 << 20

_Waiting = tuple[bytes, asyncio.Future[BlobRef]]


class PackWriter:
    """Writes small blobs of one folder, which are never deleted one by one.

    One pack is written at a time. Blobs that arrive meanwhile are in the next one, so that a pack has as many parts as
    the disk is slow. A blob that arrives alone waits for nothing.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._waiting: dict[str, list[_Waiting]] = {}
        self._writing: asyncio.Task[None] | None = None

    async def put(self, folder: str, body: bytes) -> BlobRef:
        """Write a blob below a folder; return its reference once it is durable. Raises what the store raises."""
        if len(body) > _LARGEST_PACK:
            return await self._put(folder, body, "blob")
        future: asyncio.Future[BlobRef] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(folder, []).append((body, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        # Blobs that arrive in the same iteration of the event loop are written together.
        await asyncio.sleep(0)
        while self._waiting:
            folder = next(iter(self._waiting))
            parts = _first_pack(self._waiting[folder])
            del self._waiting[folder][: len(parts)]
            if not self._waiting[folder]:
                del self._waiting[folder]
            if parts := [part for part in parts if not part[1].done()]:
                await self._write(folder, parts)

    async def _write(self, folder: str, parts: list[_Waiting]) -> None:
        content = b"".join(body for body, _ in parts)
        try:
            pack = await self._put(folder, content, "pack")
        except Exception as error:  # noqa: BLE001 - each waiting caller gets the error, of any type
            for _, future in parts:
                if not future.done():
                    future.set_exception(error)
            return
        offset = 0
        for body, future in parts:
            if not future.done():  # its caller may have been cancelled
                part = PackedPart(offset=offset, pack_sha256=pack.sha256)
                future.set_result(
                    BlobRef(uri=pack.uri, size=len(body), sha256=hashlib.sha256(body).hexdigest(), part=part)
                )
            offset += len(body)

    async def _put(self, folder: str, content: bytes, suffix: str) -> BlobRef:
        # The name is a hash of the content: no writer can replace the bytes that an event names.
        digest = hashlib.sha256(content).hexdigest()
        return await self._blobs.put_bytes(f"{folder}/{digest}.{suffix}", content, sha256=digest)


def _first_pack(waiting: list[_Waiting]) -> list[_Waiting]:
    """Return the first blobs that fit into one pack."""
    size = 0
    for count, (body, _) in enumerate(waiting):
        size += len(body)
        if size > _LARGEST_PACK and count:
            return waiting[:count]
    return waiting[:]

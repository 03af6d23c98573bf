"""`file.uploaded` in, `file.ready` or `file.rejected` out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from synth.blobs import BlobMissing, BlobStore
from synth.bus.connection import Connection
from synth.bus.history.file_log import read_file
from synth.bus.publish import Publisher
from synth.bus.recorded import Recorded
from synth.datasets.check import FileCheck
from synth.events import BlobRef, FileReady, FileRejected, FileUploaded
from synth.files.rewrite import Rewriter
from synth.runtime import logs

log = logs.get("files")


@dataclass(frozen=True)
class Handlers:
    """Checks each uploaded file, and says once what it is. max_line_bytes: see `FileCheck`."""

    bus: Connection
    blobs: BlobStore
    rewriter: Rewriter
    max_line_bytes: int

    async def file_uploaded(self, event: Recorded, uploaded: FileUploaded) -> None:
        history = await read_file(self.bus, event.org, event.key)
        # Deleted meanwhile, or checked already: the verdict on an earlier upload of these bytes still holds.
        if history.upload is None or history.verdict is not None:
            return
        blob = history.upload.blob
        try:
            verdict = await self._check(event.org, blob)
        except BlobMissing:
            if (await read_file(self.bus, event.org, event.key)).uploaded_seq != history.uploaded_seq:
                return
            raise
        id = f"verdict:{history.uploaded_seq}"
        await Publisher(self.bus).once(verdict, org=event.org, key=event.key, id=id)
        log.info("file checked", verdict=type(verdict).__name__, size=blob.size)

    async def _check(self, org: str, blob: BlobRef) -> FileReady | FileRejected:
        check = FileCheck(max_line_bytes=self.max_line_bytes)
        async for piece in self.blobs.stream(blob):
            await asyncio.to_thread(check.feed, piece)
        verdict = await asyncio.to_thread(check.finish)
        if isinstance(verdict, FileReady) and (check.image_rows or check.converted):
            return await self.rewriter.rewrite(org, blob, verdict)
        return verdict

"""`file.uploaded` in, `file.ready` or `file.rejected` out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from synth import logs
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.catalogue import subject_of
from synth.events import FileReady, FileRejected, FileUploaded
from synth.files.check import FileCheck

log = logs.get("files")


@dataclass(frozen=True)
class Handlers:
    """Checks each uploaded file, and says once what it is."""

    bus: Connection
    blobs: BlobStore

    async def file_uploaded(self, event: Recorded, uploaded: FileUploaded) -> None:
        outcomes = [subject_of(kind, event.org, event.key) for kind in (FileReady, FileRejected)]
        # A file's id is that of its bytes: the verdict on an earlier upload of them still holds.
        if await replay(self.bus.nc, outcomes):
            return
        check = FileCheck()
        async for piece in self.blobs.stream(uploaded.blob):
            await asyncio.to_thread(check.feed, piece)
        verdict = await asyncio.to_thread(check.finish)
        await Publisher(self.bus).once(verdict, org=event.org, key=event.key, id="verdict")
        log.info("file checked", verdict=type(verdict).__name__, size=uploaded.blob.size)

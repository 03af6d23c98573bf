"""`file.uploaded` in, `file.ready` or `file.rejected` out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from synth.blobs import BlobMissing, BlobStore
from synth.bus.connection import Connection
from synth.bus.history.file_log import read_file
from synth.bus.publish import Publisher
from synth.bus.recorded import Recorded
from synth.datasets.check import FileCheck
from synth.datasets.conversations import line_problem
from synth.datasets.parquet import MAGIC, PARQUET, ParquetUnreadable
from synth.errors import Problem
from synth.events import BlobRef, FileReady, FileRejected, FileUploaded
from synth.files.parquet_process import read_parquet
from synth.files.rewrite import Rewriter
from synth.runtime import logs
from synth.sandbox.command import Sandbox

log = logs.get("files")


def _is_unchecked(verdict: FileReady | FileRejected) -> bool:
    return isinstance(verdict, FileRejected) and verdict.unchecked


@dataclass(frozen=True)
class Handlers:
    """Checks each uploaded file, and publishes one verdict on it.

    max_line_bytes, max_line_values: see `FileCheck`.
    parquet_memory_bytes, parquet_rows_bytes: see `FilesSettings`. sandbox: in which Parquet is read.
    """

    bus: Connection
    blobs: BlobStore
    rewriter: Rewriter
    max_line_bytes: int
    max_line_values: int
    parquet_memory_bytes: int
    parquet_rows_bytes: int
    sandbox: Sandbox | None

    async def file_uploaded(self, event: Recorded, uploaded: FileUploaded) -> None:
        history = await read_file(self.bus, event.org, event.key)
        # Deleted meanwhile, or checked already: the verdict on an earlier upload of these bytes still holds.
        if history.upload is None or (history.verdict is not None and not _is_unchecked(history.verdict)):
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

    async def give_up(self, event: Recorded, problem: Problem) -> None:
        """Reject a file that cannot be checked: its user, and the jobs that name it, would wait for ever."""
        history = await read_file(self.bus, event.org, event.key)
        if history.upload is None or history.verdict is not None:
            return
        line = line_problem(1, ("$", problem.text()))
        verdict = FileRejected(bad_lines=1, problems=[line], unchecked=True)
        await Publisher(self.bus).once(verdict, org=event.org, key=event.key, id=f"unchecked:{history.uploaded_seq}")

    async def _check(self, org: str, blob: BlobRef) -> FileReady | FileRejected:
        if await self.blobs.get_range(blob, 0, len(MAGIC)) == MAGIC:
            return await self._check_parquet(org, blob)
        return await self._check_lines(org, blob, lambda: self.blobs.stream(blob))

    async def _check_parquet(self, org: str, blob: BlobRef) -> FileReady | FileRejected:
        """Check the rows as lines; a Parquet file is read from its end, so that it has to lie on the disk."""
        path = self.rewriter.scratch("parquet")
        try:
            with path.open("wb") as out:
                async for piece in self.blobs.stream(blob):
                    await asyncio.to_thread(out.write, piece)
            memory, rows = self.parquet_memory_bytes, self.parquet_rows_bytes

            def read() -> AsyncIterator[bytes]:
                return read_parquet(path, memory_bytes=memory, most_bytes=rows, sandbox=self.sandbox)

            return await self._check_lines(org, blob, read, shape=PARQUET)
        except ParquetUnreadable as error:
            return FileRejected(bad_lines=1, problems=[line_problem(1, ("$", str(error)))])
        finally:
            path.unlink(missing_ok=True)

    async def _check_lines(
        self, org: str, blob: BlobRef, read: Callable[[], AsyncIterator[bytes]], *, shape: str | None = None
    ) -> FileReady | FileRejected:
        """Check the lines of a file. read: its bytes as JSONL, from the beginning. shape: of every row; None if any."""
        check = FileCheck(max_line_bytes=self.max_line_bytes, max_line_values=self.max_line_values)
        async for piece in read():
            await asyncio.to_thread(check.feed, piece)
        verdict = await asyncio.to_thread(check.finish)
        if not isinstance(verdict, FileReady) or not (check.image_rows or check.converted or shape):
            return verdict
        if shape is not None:
            verdict = msgspec.structs.replace(verdict, converted={shape: verdict.rows} | verdict.converted)
        return await self.rewriter.rewrite(org, blob, verdict, read())

"""Rewrites a file in windows: its rows in order, in the format for training, with images as blobs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from synth.blobs import BlobStore
from synth.datasets.check import PROBLEMS_KEPT
from synth.datasets.conversations import canonical_line, line_problem
from synth.events import BlobRef, FileReady, FileRejected, LineProblem
from synth.files.image_rows import DraftRow, draft_row, fill_slot
from synth.files.image_source import FileImages, ImageSource
from synth.files.settings import FilesSettings
from synth.images.format import ImageRefused

#: Lines that are held in memory while their images are fetched.
_WINDOW_BYTES = 8 << 20
_WINDOW_LINES = 1024


@dataclass(frozen=True)
class Rewriter:
    """Rewrites files that cannot be trained on as uploaded. folder: scratch space for them."""

    blobs: BlobStore
    source: ImageSource
    folder: Path

    def scratch(self, purpose: str) -> Path:
        """Return a path of its own for a file that is being written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{purpose}-{uuid.uuid4().hex}"

    async def rewrite(
        self, org: str, blob: BlobRef, ready: FileReady, pieces: AsyncIterator[bytes]
    ) -> FileReady | FileRejected:
        """Rewrite a checked file, and return the verdict: ready with `rewritten`, or rejected.

        It is rejected with the images that fail. After the first 20 failures no more images are fetched, so `bad_lines`
        counts only the lines up to there. pieces: the file's bytes, as JSONL.
        """
        settings = self.source.settings
        path = self.scratch("rewrite")
        work = _FileRewrite(FileImages(self.source, org), settings, converts=bool(ready.converted))
        try:
            with path.open("wb") as out:
                try:
                    async with asyncio.timeout(settings.images_deadline_s):
                        async for lines in _windows(pieces):
                            if not await work.window(lines, out):
                                break
                except TimeoutError:
                    reason = f"the file's images have not arrived within {settings.images_deadline_s:g} s; "
                    work.problems.append(line_problem(work.line + 1, ("$", reason + "split the file")))
            if work.problems:
                bad_lines = len({problem.line for problem in work.problems})
                return FileRejected(bad_lines=bad_lines, problems=work.problems[:PROBLEMS_KEPT])
            rewritten = await self.blobs.put_file(f"{blob.uri.removeprefix('blob://')}.rows", path, move=True)
        finally:
            path.unlink(missing_ok=True)
        return msgspec.structs.replace(ready, images=work.images, rewritten=rewritten)


class _FileRewrite:
    def __init__(self, images: FileImages, settings: FilesSettings, *, converts: bool) -> None:
        self.line = 0
        self.images = 0
        self.problems: list[LineProblem] = []
        self._images = images
        self._at_once = settings.image_fetches_at_once
        self._converts = converts

    async def window(self, lines: list[bytes], out: BinaryIO) -> bool:
        """Write these lines; False when so many images have failed that the rest is not worth its fetches."""
        if self._converts:
            lines = await asyncio.to_thread(lambda: [canonical_line(line) if line.strip() else line for line in lines])
        drafts = await asyncio.to_thread(lambda: [draft_row(line) for line in lines])
        await self._fill(drafts)
        for row in drafts:
            if row is not None:
                self.images += len(row.slots)
        self.line += len(lines)
        if self.problems:
            return len(self.problems) < PROBLEMS_KEPT
        whole = (d.line() if d is not None else line for d, line in zip(drafts, lines, strict=True))
        await asyncio.to_thread(lambda: out.writelines(line + b"\n" for line in whole))
        return True

    async def _fill(self, drafts: list[DraftRow | None]) -> None:
        """Store the window's images, each address once, and write the blobs' URIs into the rows."""
        uris = {slot.address: "" for row in drafts if row is not None for slot in row.slots}
        failed: dict[str, str] = {}

        async def store(addresses: Iterator[str]) -> None:
            for address in addresses:
                if len(failed) >= PROBLEMS_KEPT:
                    failed[address] = "not looked at: too many other images of the file cannot be had"
                    continue
                try:
                    uris[address] = await self._images.store(address)
                except ImageRefused as error:
                    failed[address] = str(error)

        addresses = iter(list(uris))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._at_once, len(uris))):
                group.create_task(store(addresses))
        for number, row in enumerate(drafts, start=self.line + 1):
            for slot in row.slots if row is not None else ():
                if slot.address in failed:
                    self.problems.append(line_problem(number, (slot.path, failed[slot.address])))
                else:
                    fill_slot(slot, uris[slot.address])


async def _windows(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file, some at a time."""
    rest = b""
    window: list[bytes] = []
    size = 0
    async for piece in pieces:
        lines = piece.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()
        for line in lines:
            window.append(line)
            size += len(line)
            if size >= _WINDOW_BYTES or len(window) >= _WINDOW_LINES:
                yield window
                window, size = [], 0
    if rest:
        window.append(rest)
    if window:
        yield window

"""A dataset as a JSONL file: its rows, their positions, and its tokens in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from synth.chat.messages import TrainingRow
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.token_cache import FolderInUse, TokenCache
from synth.trainer.learner.data.token_chunk import ChunkInfo
from synth.trainer.learner.data.tokenise import BytesProgress, MakeChunk, tokenise
from synth.weights.durable import write_atomically

_RowT = TypeVar("_RowT", bound=TrainingRow)
#: In the folder of a tokenised file: its `ChunkInfo`s as a JSON list, written when all of them are there.
_MANIFEST = "chunks.json"


@dataclass(frozen=True)
class DatasetFile:
    """path: of the JSONL. sha256: of its bytes, None if not yet computed. examples: only the first rows."""

    path: Path
    sha256: str | None = None
    examples: int | None = None

    def digest(self) -> str:
        """Return the digest of everything in the file that its tokens depend on."""
        if self.sha256 is None:
            with self.path.open("rb") as file:
                return f"{hashlib.file_digest(file, 'sha256').hexdigest()} {self.examples}"
        return f"{self.sha256} {self.examples}"

    def end(self) -> int:
        """Return the byte at which the last trained row ends."""
        if self.examples is None:
            return self.path.stat().st_size
        at = rows = 0
        with self.path.open("rb") as file:
            while rows < self.examples and (line := file.readline()):
                at, rows = at + len(line), rows + bool(line.strip())
        return at

    def read(
        self, row: type[_RowT], begin: int, end: int, report: Callable[[int], None] = lambda at: None
    ) -> Iterator[_RowT]:
        """Yield the rows of whole lines from byte `begin` up to `end`. report: called with the bytes that are read.

        Raises `TrainingFailed` (bad_dataset) with the line.
        """
        decoder = msgspec.json.Decoder(row)
        expected = "messages[]" if row is TrainingRow else "messages[], chosen[] and rejected[]"
        at = begin
        with self.path.open("rb") as file:
            file.seek(begin)
            for number, line in enumerate(file, start=1):
                if at >= end:
                    return
                at += len(line)
                if line.strip():
                    try:
                        yield decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        where = f"{self.path.name}:{self.before(begin)[0] + number}"
                        raise TrainingFailed(
                            "bad_dataset", f"{where}: not a row to train on ({error!r}); expected {expected}"
                        ) from error
                report(at - begin)

    def before(self, end: int) -> tuple[int, int]:
        """Return the lines before a byte, and how many of them are rows. It reads them all: for an error alone."""
        lines = rows = at = 0
        with self.path.open("rb") as file:
            for line in file:
                if at >= end:
                    break
                at, lines, rows = at + len(line), lines + 1, rows + bool(line.strip())
        return lines, rows

    def tokens(
        self, cache: TokenCache, key: str, make: MakeChunk | None, progress: BytesProgress
    ) -> tuple[FolderInUse, list[ChunkInfo]]:
        """Return the chunks of this file's tokens, in a folder that stays in use.

        key: identifies everything that the tokens depend on. make: makes the missing chunks; None if another process
        has made them. progress: called with the bytes tokenised so far and in all, also while this waits for another
        process. Raises `TrainingFailed`: as `tokenise`.
        """
        folder = cache.use(key)
        if make is None:
            return folder, msgspec.json.decode((folder.path / _MANIFEST).read_bytes(), type=list[ChunkInfo])
        end = self.end()

        def waiting() -> None:
            # The other process may be checking existing chunks, so the figure may not change. Its own owner detects if
            # it hangs.
            cache.waiting()
            progress(min(end, cache.chunk_bytes * sum(1 for _ in folder.path.glob("*.tokens"))), end)

        with folder.writing(waiting):
            chunks = tokenise(
                self.path,
                folder.path,
                make,
                end=end,
                chunk_bytes=cache.chunk_bytes,
                processes=cache.processes,
                progress=progress,
            )
            write_atomically(folder.path / _MANIFEST, msgspec.json.encode(chunks))
        cache.evict()
        return folder, chunks

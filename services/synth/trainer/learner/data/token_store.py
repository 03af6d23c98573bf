"""The tokenised rows of a file of any size. Only the requested rows are read from its chunks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from synth.trainer.learner.data.packing import Sequences
from synth.trainer.learner.data.token_cache import FolderInUse
from synth.trainer.learner.data.token_chunk import ChunkInfo, TokenChunkReader

#: Chunks whose file is open at one time: a process may have some thousand files open, and rows are drawn from anywhere.
_OPEN = 128


def chunk_path(folder: Path, number: int) -> Path:
    """Return the file of a chunk."""
    return folder / f"{number:06d}.tokens"


class StoredSequences:
    """S token sequences in the chunks of a folder, which stays in use for as long as this lives.

    banned: as in `Sequences`.
    """

    def __init__(self, folder: FolderInUse, chunks: Sequence[ChunkInfo], *, banned: tuple[int, ...] = ()) -> None:
        self.banned = banned
        self._folder = folder
        self._cu_chunks = np.cumsum([0, *(info.sequences for info in chunks)], dtype=np.int64)
        self._readers: OrderedDict[int, TokenChunkReader] = OrderedDict()

    def __len__(self) -> int:
        return int(self._cu_chunks[-1])

    def lengths(self, indices: Iterable[int]) -> dict[int, int]:
        """Return the number of tokens of each of these sequences, by index. Raises `TrainingFailed` (bad_cache)."""
        result: dict[int, int] = {}
        for i in indices:
            reader, local = self._locate(i)
            result[i] = reader.length(local)
        return result

    def select(self, indices: Sequence[int]) -> Sequences:
        """Read these sequences, in this order, into memory. Raises `TrainingFailed` (bad_cache)."""
        rows = [reader.sequence(local) for reader, local in map(self._locate, indices)]
        images = tuple(shown for _, _, shown in rows)
        return Sequences(
            tokens=np.concatenate([ids for ids, _, _ in rows]),
            weights=np.concatenate([weights for _, weights, _ in rows]),
            cu_seqlens=np.cumsum([0, *(len(ids) for ids, _, _ in rows)]),
            images=images if any(images) else (),
            banned=self.banned,
        )

    def cu_sides(self) -> npt.NDArray[np.int64]:
        """Return int64 [2P+1]: as in `PairDataset`."""
        counts: list[npt.NDArray[np.int32]] = []
        for number in range(len(self._cu_chunks) - 1):
            counts.append(self._reader(number).sides())
        return np.concatenate([[0], *counts]).cumsum(dtype=np.int64)

    def _locate(self, i: int) -> tuple[TokenChunkReader, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"sequence {i} of {len(self)}")
        number = int(np.searchsorted(self._cu_chunks, i, side="right")) - 1
        return self._reader(number), i - int(self._cu_chunks[number])

    def _reader(self, number: int) -> TokenChunkReader:
        if number in self._readers:
            self._readers.move_to_end(number)
            return self._readers[number]
        while len(self._readers) >= _OPEN:
            _, oldest = self._readers.popitem(last=False)
            oldest.close()
        reader = self._readers[number] = TokenChunkReader(chunk_path(self._folder.path, number))
        return reader

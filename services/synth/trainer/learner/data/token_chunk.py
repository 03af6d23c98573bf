"""A chunk of tokenised rows as a file, read one sequence at a time.

The file: a record for each sequence, then the index (where each record begins, int64 [S+1]; how many tokens each has,
int32 [S]; how many sequences each side of a pair has, int32 [2P], of pairs alone), then `ChunkInfo` as JSON, then the
tail (the JSON's length and crc32, a mark). A record: int32 runs, int32 bytes of images; the runs of equal weights, as
int32 lengths and float32 weights; the ids; the images as JSON. Numbers are little-endian.

Invariants: a file under its name is whole (written under another name, synced, renamed); the weights are stored to the
bit. Files are read by positional reads, without a map: data that was read does not stay in the memory of the process,
and a file that is cut while it is read causes an error instead of a signal.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from synth.images.prompt_image import PromptImage
from synth.trainer.errors import TrainingFailed
from synth.weights.durable import sync_path

_TAIL = struct.Struct("<II8s")
_MARK = b"SYNTHTK1"
_HEAD = struct.Struct("<ii")
_PIECE = 4 << 20
_Images = tuple[PromptImage, ...]


class ChunkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The index entry of a chunk. begin, end: its bytes of the source. sequences, sides: how many; sides is 0 without
    pairs.

    counts: of its rows, as in `SftDataset`. ids: the dtype of token ids. index: the offset of the index. crc: the crc32
    of everything before this.
    """

    begin: int
    end: int
    sequences: int
    sides: int
    tokens: int
    counts: dict[str, int]
    ids: str
    index: int
    crc: int


class TokenChunkWriter:
    """Writes one chunk, in a `with` block; without `finish` nothing stays of it."""

    def __init__(self, path: Path, *, vocabulary: int) -> None:
        """vocabulary: every id is below it."""
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}")
        self._ids = np.dtype("<u2" if vocabulary <= 1 << 16 else "<i4")
        self._begins = [0]
        self._lengths: list[int] = []
        self._sides: list[int] = []
        self._crc = 0

    def __enter__(self) -> Self:
        self._out = self._partial.open("wb", buffering=1 << 20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.close()
        self._partial.unlink(missing_ok=True)

    def add(self, ids: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], images: _Images) -> None:
        """Add a sequence of at least one token."""
        # Compared as bits, so that every weight is read exactly as it was written, NaN included.
        bits = weights.view(np.int32)
        begins = np.concatenate([[0], np.flatnonzero(bits[1:] != bits[:-1]) + 1])
        runs = np.diff(begins, append=len(weights)).astype("<i4")
        shown = msgspec.json.encode(images) if images else b""
        values = runs, weights[begins].astype("<f4"), ids.astype(self._ids)
        record = _HEAD.pack(len(runs), len(shown)) + b"".join(array.tobytes() for array in values) + shown
        self._write(record)
        self._begins.append(self._begins[-1] + len(record))
        self._lengths.append(len(ids))

    def add_side(self, sequences: int) -> None:
        """Say that the last so many sequences are a side of a pair."""
        self._sides.append(sequences)

    def finish(self, *, begin: int, end: int, counts: dict[str, int]) -> ChunkInfo:
        """Write the index, and put the file in its place."""
        index = self._begins[-1]
        for values, dtype in ((self._begins, "<i8"), (self._lengths, "<i4"), (self._sides, "<i4")):
            self._write(np.asarray(values, dtype).tobytes())
        info = ChunkInfo(
            begin=begin,
            end=end,
            sequences=len(self._lengths),
            sides=len(self._sides),
            tokens=sum(self._lengths),
            counts=counts,
            ids=self._ids.str,
            index=index,
            crc=self._crc,
        )
        footer = msgspec.json.encode(info)
        self._out.write(footer + _TAIL.pack(len(footer), zlib.crc32(footer), _MARK))
        self._out.flush()
        os.fsync(self._out.fileno())
        self._partial.replace(self._path)
        sync_path(self._path.parent)
        return info

    def _write(self, body: bytes) -> None:
        self._out.write(body)
        self._crc = zlib.crc32(body, self._crc)


class TokenChunkReader:
    """Reads a chunk. Raises `TrainingFailed` (bad_cache) if the file is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self.info, self._footer_at = self._read_info()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def is_whole(self) -> bool:
        """Return whether every byte is the one that was written."""
        crc = at = 0
        while at < self._footer_at:
            piece = self._read(at, min(_PIECE, self._footer_at - at))
            crc, at = zlib.crc32(piece, crc), at + len(piece)
        return crc == self.info.crc

    def length(self, i: int) -> int:
        """Return the tokens of sequence i."""
        at = self.info.index + 8 * (self.info.sequences + 1) + 4 * i
        return int(self._array(at, 1, "<i4")[0])

    def sides(self) -> npt.NDArray[np.int32]:
        """Return int32 [2P]: how many sequences each side has."""
        return self._array(self.info.index + 12 * self.info.sequences + 8, self.info.sides, "<i4")

    def sequence(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], _Images]:
        """Return the ids, the weights and the images of sequence i."""
        begin, end = self._array(self.info.index + 8 * i, 2, "<i8").tolist()
        if not 0 <= begin <= end <= self.info.index:
            raise self._bad(f"the index places sequence {i} at {begin} to {end}")
        record = self._read(begin, end - begin)
        try:
            count, shown = _HEAD.unpack_from(record)
            runs = np.frombuffer(record, "<i4", count, _HEAD.size)
            values = np.frombuffer(record, "<f4", count, _HEAD.size + 4 * count)
            ids = np.frombuffer(record[_HEAD.size + 8 * count : len(record) - shown], self.info.ids)
            weights = np.repeat(values, runs).astype(np.float32)
            images = msgspec.json.decode(record[len(record) - shown :], type=_Images) if shown else ()
        except (struct.error, ValueError, msgspec.DecodeError) as error:
            raise self._bad(f"sequence {i} cannot be read: {error}") from error
        if len(ids) != len(weights):
            raise self._bad(f"sequence {i} has {len(ids)} ids and {len(weights)} weights")
        return ids.astype(np.int32), weights, images

    def _read_info(self) -> tuple[ChunkInfo, int]:
        size = os.fstat(self._file.fileno()).st_size
        if size < _TAIL.size:
            raise self._bad("it has no end")
        length, crc, mark = _TAIL.unpack(self._read(size - _TAIL.size, _TAIL.size))
        at = size - _TAIL.size - length
        if mark != _MARK or at < 0:
            raise self._bad("it has no end")
        footer = self._read(at, length)
        if zlib.crc32(footer) != crc:
            raise self._bad("its end is damaged")
        return msgspec.json.decode(footer, type=ChunkInfo), at

    def _array(self, at: int, count: int, dtype: str) -> npt.NDArray[Any]:
        return np.frombuffer(self._read(at, count * np.dtype(dtype).itemsize), dtype)

    def _read(self, at: int, size: int) -> bytes:
        body = os.pread(self._file.fileno(), size, at)
        if len(body) < size:
            raise self._bad(f"it ends at {at + len(body)}")
        return body

    def _bad(self, what: str) -> TrainingFailed:
        return TrainingFailed(
            "bad_cache",
            f"{self._path} is not the chunk of tokens that was written: {what}; expected the file as it was; remove "
            "it, and it is made again",
        )


def check_chunk(path: Path, *, begin: int, end: int) -> ChunkInfo | None:
    """Return the chunk's info; None if it has to be made: it does not exist, has other source bytes, or is damaged."""
    try:
        reader = TokenChunkReader(path)
    except FileNotFoundError:
        return None
    except (TrainingFailed, OSError, msgspec.DecodeError):
        return None
    try:
        info = reader.info
        return info if (info.begin, info.end) == (begin, end) and reader.is_whole() else None
    except (TrainingFailed, OSError):
        return None
    finally:
        reader.close()


def sum_counts(chunks: Sequence[ChunkInfo]) -> dict[str, int]:
    """Return the counts of all rows, and of the sequences that they became."""
    total: dict[str, int] = {}
    for info in chunks:
        for name, value in info.counts.items():
            total[name] = total.get(name, 0) + value
    return total | {"sequences": sum(info.sequences for info in chunks)}

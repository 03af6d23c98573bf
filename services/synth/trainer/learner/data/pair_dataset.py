"""Preference pairs into token sequences: each pair's two sides, with a weight for each token of the assistant's.

Invariants: a side is rendered as a conversation is for fine-tuning, after the prompt that both share, whose tokens are
context; both sides of a pair are kept, or neither is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from synth.chat.messages import PreferenceRow
from synth.chat.training_text import pair_conversations
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.packing import Sequences, SourceT_co
from synth.trainer.learner.data.sft_dataset import (
    EncodedSequence,
    RowEncoder,
    as_floats,
    cache_key,
    nothing_trained,
    today,
    vocabulary_of,
)
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.data.token_cache import TokenCache
from synth.trainer.learner.data.token_chunk import ChunkInfo, TokenChunkWriter, sum_counts
from synth.trainer.learner.data.token_store import StoredSequences
from synth.trainer.learner.data.tokenise import BytesProgress

_FORMAT = "pairs-2"
#: The error if no pair of a file can be trained: what every pair lacks, and what was expected.
_NOTHING = ("is a pair with tokens to train on both sides", "two sides that differ")
_Pair = tuple[list[EncodedSequence], list[EncodedSequence]]


@dataclass(frozen=True)
class PairDataset(Generic[SourceT_co]):
    """P tokenised pairs: their tokens in memory, or on the disk.

    cu_sides: int64 [2P+1]: pair p's chosen side is the sequences from cu_sides[2p], its rejected one those from
    cu_sides[2p+1]; a side is one sequence, unless the template renders its earlier turns again. counts: as in
    `SftDataset`; a pair of which a side has no token left to train is in untrained_rows.
    """

    sequences: SourceT_co
    cu_sides: npt.NDArray[np.int64]
    counts: dict[str, float]

    def __len__(self) -> int:
        """Return the number of pairs from which a step's are drawn."""
        return len(self.cu_sides) // 2

    def sequences_of(self, pairs: Sequence[int]) -> list[int]:
        """Return the sequences of these pairs, chosen sides before rejected ones."""
        return [i for p in pairs for i in range(int(self.cu_sides[2 * p]), int(self.cu_sides[2 * p + 2]))]

    def sides_of(self, pairs: Sequence[int]) -> list[int]:
        """Return the side of each of `sequences_of(pairs)`: 2k is the k-th pair's chosen one, 2k+1 its rejected one."""
        sides: list[int] = []
        for k, p in enumerate(pairs):
            for side in (0, 1):
                begin, end = self.cu_sides[2 * p + side : 2 * p + side + 2].tolist()
                sides += [2 * k + side] * (end - begin)
        return sides


def encode_pair_file(
    dataset: DatasetFile,
    tokenizer: Any,
    *,
    sequence_length: int,
    cache: TokenCache,
    images: SftImages | None = None,
    day: date | None = None,
    makes: bool = True,
    progress: BytesProgress = lambda done, of: None,
) -> PairDataset[StoredSequences]:
    """Tokenise a JSONL file of pairs once. Arguments and errors: as `encode_file`."""

    def make(begin: int, end: int, path: Path, report: Callable[[int], None]) -> ChunkInfo:
        before = functools.partial(dataset.before, begin)
        encoder = RowEncoder(tokenizer, sequence_length, images, rows_before=lambda: before()[1], day=day)
        rows = dataset.read(PreferenceRow, begin, end, report)
        with TokenChunkWriter(path, vocabulary=vocabulary_of(tokenizer)) as chunk:
            for pair in _encode_batches(rows, encoder):
                for side in pair:
                    for sequence in side:
                        chunk.add(sequence.ids, sequence.weights, sequence.images)
                    chunk.add_side(len(side))
            return chunk.finish(begin=begin, end=end, counts=encoder.count)

    day = day or today()
    key = cache_key(_FORMAT, dataset, tokenizer, (sequence_length, cache.chunk_bytes), images, day)
    folder, chunks = dataset.tokens(cache, key, make if makes else None, progress)
    counts = sum_counts(chunks)
    if not counts["sequences"]:
        raise nothing_trained(counts.get("rows", 0), sequence_length, *_NOTHING)
    sequences = StoredSequences(folder, chunks, banned=() if images is None else images.loader.banned)
    return PairDataset(sequences, sequences.cu_sides(), as_floats(counts))


def encode_pairs(
    rows: Iterable[PreferenceRow],
    tokenizer: Any,
    *,
    sequence_length: int,
    images: SftImages | None = None,
) -> PairDataset[Sequences]:
    """Render and tokenise pairs, in memory; both sides of each are cut at `sequence_length` tokens.

    Raises `TrainingFailed`: bad_dataset for a pair that the template cannot render or of which it renders both sides
    the same, for an image without `images`, and when nothing at all is trained; bad_image.
    """
    encoder = RowEncoder(tokenizer, sequence_length, images)
    kept = [side for pair in _encode_batches(rows, encoder) for side in pair]
    if not kept:
        raise nothing_trained(encoder.count["rows"], sequence_length, *_NOTHING)
    sequences = encoder.sequences([sequence for side in kept for sequence in side])
    cu_sides = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return PairDataset(sequences, cu_sides, as_floats(encoder.count | {"sequences": len(sequences)}))


def _encode_batches(rows: Iterable[PreferenceRow], encoder: RowEncoder) -> Iterator[_Pair]:
    """Yield the trained pairs of rows, some rows at a time."""
    sides_of = (side for row in encoder.counted(rows) for side in pair_conversations(row))
    seen = 0
    for sides in encoder.batches(map(encoder.render, sides_of), sides=2):
        encoded = iter(encoder.encode([sequence for side in sides for sequence in side]))
        for k in range(0, len(sides), 2):
            seen += 1
            pair = [[next(encoded) for _ in side] for side in sides[k : k + 2]]
            cut = any(len(sequence.ids) < sequence.length for side in pair for sequence in side)
            chosen, rejected = ([sequence for sequence in side if sequence.is_trained] for side in pair)
            same = _is_same(chosen, rejected)
            if same and not cut:
                raise TrainingFailed(
                    "bad_dataset",
                    f"row {encoder.number_of(seen)}: the model's chat template renders the chosen and the rejected "
                    "side the same; expected two that differ; remove the pair",
                )
            if same or not chosen or not rejected:
                encoder.count["untrained_rows"] += 1
                continue
            yield chosen, rejected


def _is_same(chosen: list[EncodedSequence], rejected: list[EncodedSequence]) -> bool:
    return len(chosen) == len(rejected) and all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.weights, b.weights)
        for a, b in zip(chosen, rejected, strict=True)
    )

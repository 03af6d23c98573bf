"""Preference pairs into token sequences: each pair's two sides, with a weight for each token of the assistant's.

Invariants: a side is rendered as a conversation is for fine-tuning, after the prompt that both share, whose tokens are
context; both sides of a pair are kept, or neither is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.chat.messages import PreferenceRow, TrainingMessage, TrainingRow
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import Sequences, sequences_from_tensors, sequences_to_tensors
from synth.trainer.learner.data.sft_dataset import (
    EncodedSequence,
    RenderedSequence,
    RowEncoder,
    cache_key,
    read_or_encode,
    read_rows,
)
from synth.trainer.learner.data.sft_images import SftImages

_FORMAT = "pairs-1"


@dataclass(frozen=True)
class PairDataset:
    """P tokenised pairs.

    cu_sides: int64 [2P+1]: pair p's chosen side is the sequences from cu_sides[2p], its rejected one those from
    cu_sides[2p+1]; a side is one sequence, unless the template renders its earlier turns anew. counts: as those of
    `SftDataset`; a pair of which a side has no token left to train is in untrained_rows.
    """

    sequences: Sequences
    cu_sides: npt.NDArray[np.int64]
    counts: dict[str, float]

    def __len__(self) -> int:
        """How many there are to draw a step's from."""
        return len(self.cu_sides) // 2

    def sequences_of(self, pairs: list[int]) -> list[int]:
        """The sequences of these pairs, chosen sides before rejected ones."""
        return [i for p in pairs for i in range(int(self.cu_sides[2 * p]), int(self.cu_sides[2 * p + 2]))]

    def sides_of(self, pairs: list[int]) -> list[int]:
        """The side of each of `sequences_of(pairs)`: 2k is the k-th pair's chosen one, 2k+1 its rejected one."""
        counts = np.diff(self.cu_sides)
        sides = [(2 * k + side, int(counts[2 * p + side])) for k, p in enumerate(pairs) for side in (0, 1)]
        return [side for side, count in sides for _ in range(count)]


def encode_pair_file(
    dataset: Path,
    tokenizer: Any,
    *,
    sequence_length: int,
    examples: int | None = None,
    images: SftImages | None = None,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> PairDataset:
    """Tokenise a JSONL file of pairs once, as `encode_file` does. Raises `TrainingFailed` (bad_dataset, bad_image)."""

    def encode() -> tuple[dict[str, Tensor], dict[str, float]]:
        rows = itertools.islice(read_rows(dataset, PreferenceRow), examples)
        data = encode_pairs(rows, tokenizer, sequence_length=sequence_length, images=images, progress=progress)
        return sequences_to_tensors(data.sequences) | {"cu_sides": torch.from_numpy(data.cu_sides)}, data.counts

    key = cache_key(_FORMAT, dataset, tokenizer, (sequence_length, examples), images)
    tensors, counts = read_or_encode(cache, key, encode)
    return PairDataset(sequences_from_tensors(tensors), tensors["cu_sides"].numpy(), counts)


def encode_pairs(
    rows: Iterable[PreferenceRow],
    tokenizer: Any,
    *,
    sequence_length: int,
    images: SftImages | None = None,
    progress: Callable[[int], None] | None = None,
) -> PairDataset:
    """Render and tokenise pairs; both sides of each are cut at `sequence_length` tokens.

    Raises `TrainingFailed`: bad_dataset for a pair that the template cannot render or of which it renders both sides
    the same, for an image without `images`, and when nothing at all is trained; bad_image.
    """
    encoder = RowEncoder(tokenizer, sequence_length, images)
    sides: list[list[RenderedSequence]] = []
    for row in rows:
        encoder.count["rows"] += 1
        sides += [encoder.render(_conversation(row, side)) for side in (row.chosen, row.rejected)]
        if progress is not None:
            progress(encoder.count["rows"])
    encoded = iter(encoder.encode([sequence for side in sides for sequence in side]))
    kept: list[list[EncodedSequence]] = []
    for number in range(1, len(sides) // 2 + 1):
        pair = [[next(encoded) for _ in side] for side in sides[2 * number - 2 : 2 * number]]
        cut = any(len(sequence.ids) < sequence.length for side in pair for sequence in side)
        chosen, rejected = ([sequence for sequence in side if sequence.is_trained] for side in pair)
        same = _is_same(chosen, rejected)
        if same and not cut:
            raise TrainingFailed(
                "bad_dataset",
                f"row {number}: the model's chat template renders the chosen and the rejected side the same; expected "
                "two that differ; remove the pair",
            )
        if same or not chosen or not rejected:
            encoder.count["untrained_rows"] += 1
            continue
        kept += [chosen, rejected]
    if not kept:
        raise encoder.nothing_trained("is a pair with tokens to train on both sides", "two sides that differ")
    sequences = encoder.sequences([sequence for side in kept for sequence in side])
    cu_sides = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return PairDataset(sequences, cu_sides, encoder.counts(len(sequences)))


def _conversation(row: PreferenceRow, side: list[TrainingMessage]) -> TrainingRow:
    """The prompt, as context alone, and one side."""
    prompt = [msgspec.structs.replace(m, weight=0.0) if m.role == "assistant" else m for m in row.messages]
    return TrainingRow(messages=[*prompt, *side], tools=row.tools)


def _is_same(chosen: list[EncodedSequence], rejected: list[EncodedSequence]) -> bool:
    return len(chosen) == len(rejected) and all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.weights, b.weights)
        for a, b in zip(chosen, rejected, strict=True)
    )

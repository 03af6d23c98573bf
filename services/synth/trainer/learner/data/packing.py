"""Divides sequences into micro-batches, by a pure function of lengths and ranks, so that a replay makes the same ones.

Invariants: every sequence is in exactly one micro-batch; no token attends outside its own sequence;
packed and padded give the same log-probabilities up to rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.images.positions import mrope_positions
from synth.images.prompt_image import PromptImage
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.allowed_tokens import AllowedTokens
from synth.trainer.learner.data.images import ImageLoader
from synth.trajectories import TokenMasks


class SequenceSource(Protocol):
    """S token sequences, in memory or on the disk; a sequence is read when it is used."""

    def __len__(self) -> int: ...

    def lengths(self, indices: Iterable[int]) -> dict[int, int]:
        """Return the number of tokens of each of these sequences, by index."""
        ...

    def select(self, indices: Sequence[int]) -> Sequences:
        """Return these sequences, in this order, in memory, without their masks."""
        ...


@dataclass(frozen=True)
class Sequences:
    """S token sequences, flat over their T tokens.

    tokens: int32 [T]. weights: float32 [T], 0 if a token is not trained. cu_seqlens: int [S+1].
    masks: the tokens that could be sampled in place of each of the T tokens; None if any could. images: the images that
    each sequence's tokens show, in order; empty if no sequence shows any. banned: the ids that are sampled nowhere.
    """

    tokens: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    cu_seqlens: npt.NDArray[Any]
    masks: TokenMasks | None = None
    images: tuple[tuple[PromptImage, ...], ...] = ()
    banned: tuple[int, ...] = ()

    def lengths(self, indices: Iterable[int]) -> dict[int, int]:
        """Return the number of tokens of each of these sequences, by index."""
        return {i: int(self.cu_seqlens[i + 1] - self.cu_seqlens[i]) for i in indices}

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    def trained_positions(self, i: int) -> npt.NDArray[np.int64]:
        """Return the flat positions of sequence i's trained tokens. Its first token is never one of them."""
        start, end = int(self.cu_seqlens[i]), int(self.cu_seqlens[i + 1])
        return start + 1 + np.flatnonzero(self.weights[start + 1 : end])

    def select(self, indices: Sequence[int]) -> Sequences:
        """Return a set of only these sequences, in this order, without their masks."""
        spans = [slice(self.cu_seqlens[i], self.cu_seqlens[i + 1]) for i in indices]
        return Sequences(
            tokens=np.concatenate([self.tokens[s] for s in spans]),
            weights=np.concatenate([self.weights[s] for s in spans]),
            cu_seqlens=np.cumsum([0, *(s.stop - s.start for s in spans)]),
            images=tuple(self.images[i] for i in indices) if self.images else (),
            banned=self.banned,
        )

    def images_of(self, indices: list[int]) -> tuple[PromptImage, ...]:
        """Return the images of these sequences, end to end."""
        return tuple(image for i in indices for image in self.images[i]) if self.images else ()


def sequences_to_tensors(sequences: Sequences) -> dict[str, Tensor]:
    """Return the sequences, without their masks, as tensors to be stored; `sequences_from_tensors` reads them."""
    arrays = {
        "tokens": sequences.tokens,
        "weights": sequences.weights,
        "cu_seqlens": sequences.cu_seqlens.astype(np.int64),
        "banned": np.asarray(sequences.banned, np.int64),
        "images": np.frombuffer(bytearray(msgspec.json.encode(sequences.images)), np.uint8),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def sequences_from_tensors(tensors: dict[str, Tensor]) -> Sequences:
    """Read what `sequences_to_tensors` made."""
    images = msgspec.json.decode(tensors["images"].numpy().tobytes(), type=tuple[tuple[PromptImage, ...], ...])
    tokens, weights, cu_seqlens = (tensors[name].numpy() for name in ("tokens", "weights", "cu_seqlens"))
    return Sequences(tokens, weights, cu_seqlens, images=images, banned=tuple(tensors["banned"].tolist()))


@dataclass(frozen=True)
class MicroBatch:
    """One forward.

    sequence_indices: the sequences in it, in order. input_ids_BL: int64, right-padded ("padded") or B = 1 ("packed").
    position_ids_BL: int64 when packed, restarting at 0 with each sequence; None when padded.
    predict_N: int64, flat positions in B·L whose hidden state predicts a trained token.
    target_N: int64, that token. source_N: the position of that token in `Sequences.tokens`.
    cu_seqlens: int64 [len(sequence_indices)+1], the offsets of each sequence's trained tokens in the N tokens of this
    micro-batch. allowed: the tokens that each of the N could have been; None if any could.
    images: of its sequences, end to end; their patches are made for the forward, because a step has many of them.
    mrope_3BL: int64, the positions on three axes if it has images, else None. banned: int64, the ids that no token
    could have been; None if there are no such ids.
    dummy: run only because a sharded forward needs every rank: it adds nothing to any gradient or metric.
    """

    sequence_indices: list[int]
    input_ids_BL: Tensor
    position_ids_BL: Tensor | None
    predict_N: Tensor
    target_N: Tensor
    source_N: npt.NDArray[np.int64]
    cu_seqlens: Tensor
    allowed: AllowedTokens | None = None
    images: tuple[PromptImage, ...] = ()
    mrope_3BL: Tensor | None = None
    banned: Tensor | None = None
    dummy: bool = False

    def gather(self, values_T: npt.NDArray[Any]) -> Tensor:
        """Return the values at this micro-batch's trained tokens [N], from an array over the tokens of `Sequences`."""
        return torch.from_numpy(values_T[self.source_N]).to(self.input_ids_BL.device)


#: The source of a dataset's sequences: memory or the disk.
SourceT_co = TypeVar("SourceT_co", bound=SequenceSource, covariant=True)


#: Sequences, or pairs, that are planned at one time when a whole dataset is processed: a plan checks each bin for
#: each sequence.
_WINDOW = 1024

#: Tokens of a forward below which rows are not divided for another thread. Python's part of a forward runs on one
#: thread at a time: 1,428 tokens of the demo's model take 33 ms in four forwards, and 23 ms in two.
_MIN_FORWARD_TOKENS = 512


def windows(count: int) -> Iterator[list[int]]:
    """Yield 0 … count-1, in groups that are planned together."""
    for begin in range(0, count, _WINDOW):
        yield list(range(begin, min(begin + _WINDOW, count)))


def plan_micro_batches(
    lengths: dict[int, int],
    *,
    budget: int,
    packing: Literal["packed", "padded"],
    num_ranks: int = 1,
    forwards: int = 1,
) -> list[list[int]]:
    """Divide sequences, given by index and length, into micro-batches of at most `budget` tokens.

    padded: longest first, so that sequences of about one length share their padding. packed: as few bins as fit,
    balanced by Σ length², which is what attention costs. A sequence longer than the budget is alone in its micro-batch.
    num_ranks: processes that share the micro-batches. forwards: of each rank, that may run at the same time. Bins are
    split until their number is a multiple of both, if there are enough sequences, and for `forwards` enough tokens;
    they are sorted by cost, so that the micro-batches that run at the same time cost about the same.
    """
    while forwards > 1 and sum(lengths.values()) < num_ranks * forwards * _MIN_FORWARD_TOKENS:
        forwards //= 2
    by_length = sorted(lengths, key=lambda i: -lengths[i])
    fill_bins = _padded_bins if packing == "padded" else _packed_bins
    return _split_bins(lengths, fill_bins(lengths, by_length, budget), num_ranks * forwards)


def _split_bins(lengths: dict[int, int], bins: list[list[int]], multiple: int) -> list[list[int]]:
    if multiple == 1:
        return bins

    def cost(indices: list[int]) -> int:
        return sum(lengths[i] ** 2 for i in indices)

    while len(bins) % multiple and any(len(indices) > 1 for indices in bins):
        costliest = max((indices for indices in bins if len(indices) > 1), key=cost)
        bins.remove(costliest)
        bins += [costliest[::2], costliest[1::2]]
    return sorted(bins, key=cost, reverse=True)


def _padded_bins(lengths: dict[int, int], by_length: list[int], budget: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for i in by_length:
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _packed_bins(lengths: dict[int, int], by_length: list[int], budget: int) -> list[list[int]]:
    num_bins = max(1, math.ceil(sum(lengths[i] for i in by_length) / budget))
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    tokens, cost = [0] * num_bins, [0] * num_bins
    for i in by_length:
        fitting = [b for b in range(len(bins)) if not bins[b] or tokens[b] + lengths[i] <= budget]
        if not fitting:
            bins.append([])
            tokens.append(0)
            cost.append(0)
            fitting = [len(bins) - 1]
        best = min(fitting, key=lambda b: (cost[b], b))
        bins[best].append(i)
        tokens[best] += lengths[i]
        cost[best] += lengths[i] ** 2
    return [b for b in bins if b]


def collate(
    sequences: Sequences,
    indices: list[int],
    *,
    packing: Literal["packed", "padded"],
    device: torch.device | str = "cpu",
    images: ImageLoader | None = None,
    dummy: bool = False,
) -> MicroBatch:
    """Lay some sequences out for one forward.

    images: the model's image loader, if it takes images. Raises `TrainingFailed` (bad_image) if the images of a
    sequence differ from those that its tokens show, or if the model takes no images and a sequence has some.
    """
    starts = [int(sequences.cu_seqlens[i]) for i in indices]
    lengths = [int(sequences.cu_seqlens[i + 1]) - s for i, s in zip(indices, starts, strict=True)]
    width = sum(lengths) if packing == "packed" else max(lengths)
    shape = (1, width) if packing == "packed" else (len(indices), width)
    # The offset of each sequence in the flattened [B·L].
    offsets = [k * width for k in range(len(indices))]
    if packing == "packed":
        offsets = [0, *itertools.accumulate(lengths)][:-1]
    input_ids = np.zeros(shape[0] * shape[1], dtype=np.int64)
    sources, predicts = [], []
    for i, start, length, offset in zip(indices, starts, lengths, offsets, strict=True):
        input_ids[offset : offset + length] = sequences.tokens[start : start + length]
        trained = sequences.trained_positions(i)
        sources.append(trained)
        predicts.append(trained - start - 1 + offset)
    source = np.concatenate(sources)
    positions = np.concatenate([np.arange(n) for n in lengths]) if packing == "packed" else None
    shown = sequences.images_of(indices)
    mrope = _mrope(sequences, indices, offsets, shape, images) if shown else None
    return MicroBatch(
        sequence_indices=indices,
        input_ids_BL=torch.from_numpy(input_ids).reshape(shape).to(device),
        position_ids_BL=None if positions is None else torch.from_numpy(positions)[None].to(device),
        predict_N=torch.from_numpy(np.concatenate(predicts)).to(device),
        target_N=torch.from_numpy(sequences.tokens[source].astype(np.int64)).to(device),
        source_N=source,
        cu_seqlens=torch.tensor([0, *itertools.accumulate(len(s) for s in sources)], device=device),
        allowed=None if sequences.masks is None else AllowedTokens.of(sequences.masks, source, device),
        images=shown,
        mrope_3BL=None if mrope is None else torch.from_numpy(mrope).to(device),
        banned=torch.tensor(sequences.banned, device=device) if sequences.banned else None,
        dummy=dummy,
    )


def _mrope(
    sequences: Sequences, indices: list[int], offsets: list[int], shape: tuple[int, int], images: ImageLoader | None
) -> npt.NDArray[np.int64]:
    """Return int64 [3, B, L]: the positions of these sequences, each at its offset in B·L."""
    if images is None:
        raise TrainingFailed("bad_image", "the batch shows images, and the model sees none; expected a vision model")
    positions = np.zeros((3, shape[0] * shape[1]), np.int64)
    for i, offset in zip(indices, offsets, strict=True):
        tokens = sequences.tokens[sequences.cu_seqlens[i] : sequences.cu_seqlens[i + 1]]
        try:
            own, _ = mrope_positions(
                tokens, sequences.images[i], image_token=images.image_token, merge_size=images.merge_size
            )
        except ValueError as error:
            raise TrainingFailed("bad_image", f"sequence {i}: {error}") from error
        positions[:, offset : offset + len(tokens)] = own
    return positions.reshape(3, *shape)

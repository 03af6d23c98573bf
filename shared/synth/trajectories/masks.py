"""The tokens that could be sampled at each position, if a grammar allowed only some of them (decision 33).

A constrained token was drawn from the policy's distribution among the allowed tokens. The trainer must leave the others
out of its softmax too, so the sets travel with the tokens: a few distinct ones, each as the shorter of two lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from synth.trajectories.packing import Bool, Int32, concatenate


@dataclass(frozen=True, eq=False)
class TokenSet:
    """Some tokens of a vocabulary. ids: int32 [K], ascending. excluded: whether these are the tokens not in the set."""

    ids: Int32
    excluded: bool

    @classmethod
    def of(cls, allowed_V: Bool) -> TokenSet:
        """Return the set of the tokens whose entry is True."""
        excluded = int(allowed_V.sum()) * 2 > len(allowed_V)
        return cls(np.flatnonzero(~allowed_V if excluded else allowed_V).astype(np.int32), excluded)

    @property
    def key(self) -> tuple[bool, bytes]:
        """Equal for equal sets."""
        return self.excluded, self.ids.tobytes()


@dataclass(frozen=True, eq=False)
class TokenMasks:
    """The tokens that could be sampled at each of T positions.

    index: int32 [T], the position's set in `sets`, -1 where every token could be sampled.
    """

    index: Int32
    sets: tuple[TokenSet, ...]

    @classmethod
    def of(cls, allowed: Iterable[TokenSet | None]) -> TokenMasks | None:
        """Return the masks of positions, each with its set, or None for every token; None if no position has a set."""
        known: dict[tuple[bool, bytes], int] = {}
        sets: list[TokenSet] = []
        index: list[int] = []
        for one in allowed:
            if one is None:
                index.append(-1)
                continue
            index.append(known.setdefault(one.key, len(sets)))
            if index[-1] == len(sets):
                sets.append(one)
        return cls(np.asarray(index, np.int32), tuple(sets)) if sets else None

    def part(self, start: int, end: int) -> TokenMasks | None:
        """Return the masks of positions `start` … `end - 1`, without the sets that they do not use."""
        indices: list[int] = self.index[start:end].tolist()
        return TokenMasks.of(None if i < 0 else self.sets[i] for i in indices)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.index.nbytes + sum(one.ids.nbytes for one in self.sets)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the masks as arrays to be packed, for `from_arrays`."""
        return {
            "mask_index": self.index,
            "mask_ids": concatenate([one.ids for one in self.sets], np.int32),
            "mask_offsets": np.cumsum([0, *(len(one.ids) for one in self.sets)], dtype=np.int64),
            "mask_excluded": np.asarray([one.excluded for one in self.sets], np.bool_),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]], *, prefix: str = "") -> TokenMasks | None:
        """Read the result of `arrays`, whose names follow a prefix; None if there is none."""
        if f"{prefix}mask_index" not in arrays:
            return None
        index, ids, offsets, excluded = (
            arrays[f"{prefix}mask_{name}"] for name in ("index", "ids", "offsets", "excluded")
        )
        sets = tuple(TokenSet(ids[offsets[i] : offsets[i + 1]], bool(inverted)) for i, inverted in enumerate(excluded))
        return cls(index, sets)


def join_masks(parts: Sequence[tuple[TokenMasks | None, int]]) -> TokenMasks | None:
    """Return the masks of parts end to end, each with its number of positions; None if no part has one."""
    if all(masks is None for masks, _ in parts):
        return None
    known: dict[tuple[bool, bytes], int] = {}
    sets: list[TokenSet] = []
    indices: list[Int32] = []
    for masks, length in parts:
        if masks is None:
            indices.append(np.full(length, -1, np.int32))
            continue
        places = np.empty(len(masks.sets) + 1, np.int32)
        places[-1] = -1  # the index -1 points here
        for i, one in enumerate(masks.sets):
            places[i] = known.setdefault(one.key, len(sets))
            if places[i] == len(sets):
                sets.append(one)
        indices.append(places[masks.index])
    return TokenMasks(concatenate(indices, np.int32), tuple(sets))

"""The tokens that a constrained position could be, as tensors; all others are left out of its softmax (decision 33)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.trajectories import TokenMasks


@dataclass(frozen=True)
class AllowedTokens:
    """The allowed tokens of N positions, as M sets.

    index_N: int64, the set of each position, -1 if it is not constrained. ids: int64, the sets' lists end to end.
    offsets: int64 [M+1]. excluded: bool, whether a list names the tokens that are not in the set.
    """

    index_N: Tensor
    ids: Tensor
    offsets: Tensor
    excluded: Tensor

    @classmethod
    def of(
        cls, masks: TokenMasks, positions: npt.NDArray[np.int64], device: torch.device | str
    ) -> AllowedTokens | None:
        """Return the allowed tokens of some positions; None if none of them is constrained."""
        index = masks.index[positions].astype(np.int64)
        if not (index >= 0).any():
            return None
        arrays = masks.arrays()
        return cls(
            index_N=torch.from_numpy(index).to(device),
            ids=torch.from_numpy(arrays["mask_ids"].astype(np.int64)).to(device),
            offsets=torch.from_numpy(arrays["mask_offsets"]).to(device),
            excluded=torch.from_numpy(arrays["mask_excluded"]).to(device),
        )

    def to(self, device: torch.device) -> AllowedTokens:
        """Return a copy on another device."""
        return AllowedTokens(*(t.to(device) for t in (self.index_N, self.ids, self.offsets, self.excluded)))

    def forbidden(self, positions: slice, vocabulary: int) -> Tensor | None:
        """Return bool [C, V]: the tokens that these C positions could not be; None if none of them is constrained."""
        index_C = self.index_N[positions]
        rows = (index_C >= 0).nonzero().squeeze(1)
        if not len(rows):
            return None
        sets = index_C[rows]
        lengths = self.offsets[sets + 1] - self.offsets[sets]
        begins = self.offsets[sets] - (lengths.cumsum(0) - lengths)
        at = torch.arange(int(lengths.sum()), device=lengths.device) + begins.repeat_interleave(lengths)
        listed_CV = torch.zeros((len(index_C), vocabulary), dtype=torch.bool, device=index_C.device)
        listed_CV[rows.repeat_interleave(lengths), self.ids[at]] = True
        listed_CV[rows] ^= ~self.excluded[sets][:, None]
        return listed_CV

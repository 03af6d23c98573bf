"""The seam between a policy's log-probabilities and a policy-gradient loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """S sequences with N sampled tokens in all, flat.

    logp_N: float32 or float64, nats, with gradient. old_logp_N: the same tokens under π_old, no gradient.
    weight_N: correction of each token (1 is none). keep_S: bool, False where a sequence was rejected.
    advantage_S. cu_seqlens: int64 [S+1], into N.
    sequences: the normaliser, a count over every micro-batch and rank, known before the forward.
    """

    logp_N: Tensor
    old_logp_N: Tensor
    weight_N: Tensor
    keep_S: Tensor
    advantage_S: Tensor
    cu_seqlens: Tensor
    sequences: int


@dataclass(frozen=True)
class LossOutput:
    """loss: a scalar to differentiate; summed over micro-batches it is the minibatch's loss.

    clipped_S: bool, the sequences whose gradient the clip removed.
    """

    loss: Tensor
    clipped_S: Tensor


def row_of_token(cu_seqlens: Tensor) -> Tensor:
    """int64 [N]: which sequence each token belongs to."""
    counts = cu_seqlens.diff()
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def segment_mean(values_N: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The mean over each sequence's own tokens, [S]; 0 for a sequence without tokens.

    A sum in the order of the tokens, so that the same row gives the same bits.
    """
    counts = cu_seqlens.diff()
    sums = torch.zeros(len(counts), dtype=values_N.dtype, device=values_N.device)
    return sums.index_add(0, row_of_token(cu_seqlens), values_N) / counts.clamp(min=1)

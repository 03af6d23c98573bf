"""The inputs and outputs of a policy-gradient loss, and the terms that the losses share.

Invariants: float32 or wider throughout; sampled tokens only, each with the weight that `reduction` gave it, so that
changing the loss does not change the scale of the gradient; at logp == old_logp nothing is clipped and the gradient
equals REINFORCE with a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# exp(10) is far outside any clip range; the cap only keeps an exploded ratio finite, so that it can be reported.
LOG_RATIO_CAP = 10.0


@dataclass(frozen=True)
class Clip:
    """The bounds of a clip: a ratio may fall to 1 - low and rise to 1 + high.

    DPPO: a probability may move by as much. dual: how often a token with a negative advantage counts at most (GRPO).
    """

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True)
class LossInputs:
    """S sequences with N sampled tokens in all, flat.

    logp_N: float32 or float64, nats, with gradient. old_logp_N: the same tokens under π_old, without gradient.
    behaviour_logp_N: under μ, the policy that sampled them, as the inference engine recorded it.
    weight_N: the importance weight of each token (1: no correction). keep_S: bool, False if a sequence was rejected.
    advantage_S: of each sequence. token_advantage_N: if credit is given within a sequence; None: each token has its
    sequence's advantage.
    cu_seqlens: int64 [S+1], into N.
    token_weight_S: what one token of each sequence weighs in the loss (`reduction.token_weights`).
    Raises `TypeError` on half precision, in which GSPO's clip band does not exist.
    """

    logp_N: Tensor
    old_logp_N: Tensor
    behaviour_logp_N: Tensor
    weight_N: Tensor
    keep_S: Tensor
    advantage_S: Tensor
    cu_seqlens: Tensor
    token_weight_S: Tensor
    token_advantage_N: Tensor | None = None

    def __post_init__(self) -> None:
        if self.logp_N.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"a policy-gradient loss needs float32 log-probabilities, not {self.logp_N.dtype}")

    def advantage_N(self) -> Tensor:
        """Return each token's advantage."""
        if self.token_advantage_N is not None:
            return self.token_advantage_N
        return self.advantage_S[sequence_index(self.cu_seqlens)]


@dataclass(frozen=True)
class LossOutput:
    """loss: a scalar to differentiate; summed over micro-batches it is the minibatch's loss.

    clipped_U: bool, True if the clip removed the gradient, or, for cispo, bounded it. advantage_U: the advantage of
    each. U: the units that the clip acts on: the S sequences for gspo, the N tokens for the other losses.
    """

    loss: Tensor
    clipped_U: Tensor
    advantage_U: Tensor


def sequence_index(cu_seqlens: Tensor) -> Tensor:
    """Return int64 [N]: the sequence that each token belongs to."""
    counts = cu_seqlens.diff()
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def segment_sum(values_N: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the sum over each sequence's own tokens, [S]; 0 for a sequence without tokens.

    It sums in the order of the tokens, so that the same sequence gives the same bits.
    """
    sums = torch.zeros(len(cu_seqlens) - 1, dtype=values_N.dtype, device=values_N.device)
    return sums.index_add(0, sequence_index(cu_seqlens), values_N)


def segment_mean(values_N: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the mean over each sequence's own tokens, [S]; 0 for a sequence without tokens."""
    return segment_sum(values_N, cu_seqlens) / cu_seqlens.diff().clamp(min=1)


def importance_ratio(log_ratio_N: Tensor, logp_N: Tensor) -> Tensor:
    """Return exp(log_ratio), with the gradient of π: `sg[ratio] · π / sg[π]`.

    The cap on an exploded ratio acts on the value alone and removes no gradient.
    """
    return (log_ratio_N.detach().clamp(max=LOG_RATIO_CAP) + (logp_N - logp_N.detach())).exp()


def clipped_surrogate(ratio_N: Tensor, advantage_N: Tensor, clip: Clip) -> Tensor:
    """Return max(−r·A, −clip(r, 1 − low, 1 + high)·A) of each token (PPO, arXiv 1707.06347, eq. 7, negated)."""
    clipped_N = ratio_N.clamp(1 - clip.low, 1 + clip.high)
    return torch.maximum(-ratio_N * advantage_N, -clipped_N * advantage_N)


def clip_mask(ratio_U: Tensor, advantage_U: Tensor, clip: Clip) -> Tensor:
    """Return bool [U]: True if the ratio left the range on the advantage's side, so that its gradient is 0."""
    outside_U = torch.where(advantage_U > 0, ratio_U > 1 + clip.high, ratio_U < 1 - clip.low)
    return outside_U & (advantage_U != 0)

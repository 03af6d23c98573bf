"""Group Sequence Policy Optimization (arXiv 2507.18071).

Invariants: float32 or wider throughout; the mean is over sampled tokens alone, first within a sequence, then
over sequences; at logp == old_logp nothing is clipped and the gradient is that of REINFORCE with a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from synth.trainer.losses import LossInputs, LossOutput, row_of_token, segment_mean

# exp(10) is far outside any clip range; it only keeps an exploded ratio finite, so that it can be reported.
_LOG_RATIO_CAP = 10.0


@dataclass(frozen=True)
class Clip:
    """The ratio is clipped to [1 − low, 1 + high]."""

    low: float
    high: float


def gspo_loss(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Sequence-level clipped policy-gradient loss (arXiv 2507.18071, eq. 5 and 7; token form eq. 13).

        s    = exp(mean_t(logp − old_logp))                      over the sampled tokens of a sequence
        loss = mean_S mean_t w_t · max(−s·A, −clip(s, 1 − low, 1 + high)·A)

    s has its value from the whole sequence and its gradient from each token (`sg[s]·π/sg[π]`), so that a token's
    correction w_t scales the gradient of that token alone; with w = 1 it is eq. 5 in value and in gradient.
    A rejected sequence (keep_S False) adds nothing but stays in the normaliser.
    Raises `TypeError` on half precision, in which the clip band does not exist.
    """
    logp_N = inputs.logp_N
    if logp_N.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"gspo_loss needs float32 log-probabilities, not {logp_N.dtype}")
    row_N = row_of_token(inputs.cu_seqlens)
    log_s_S = segment_mean((logp_N - inputs.old_logp_N).detach(), inputs.cu_seqlens).clamp(max=_LOG_RATIO_CAP)
    s_N = (log_s_S[row_N] + (logp_N - logp_N.detach())).exp()
    advantage_N = inputs.advantage_S[row_N]
    free_N = -s_N * advantage_N
    held_N = -s_N.clamp(1 - clip.low, 1 + clip.high) * advantage_N
    loss_S = segment_mean(inputs.weight_N * torch.maximum(free_N, held_N), inputs.cu_seqlens)
    s_S = log_s_S.exp()
    clipped_S = torch.where(inputs.advantage_S > 0, s_S > 1 + clip.high, s_S < 1 - clip.low)
    return LossOutput(
        loss=(loss_S * inputs.keep_S).sum() / inputs.sequences,
        clipped_S=clipped_S & (inputs.advantage_S != 0),
    )

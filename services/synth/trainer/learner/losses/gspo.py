"""Group Sequence Policy Optimization (arXiv 2507.18071): the ratio and its clip are a whole sequence's."""

from __future__ import annotations

from torch import Tensor

from synth.trainer.learner.losses.base import (
    LOG_RATIO_CAP,
    Clip,
    LossInputs,
    LossOutput,
    clip_mask,
    clipped_surrogate,
    importance_ratio,
    segment_mean,
    sequence_index,
)
from synth.trainer.learner.losses.reduction import reduce_loss


def gspo_loss(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Compute the sequence-level clipped loss (arXiv 2507.18071, eq. 5 and 7).

        s    = exp(mean_t(logp − old_logp))                      over the sampled tokens of a sequence
        loss = Σ_N u_t · w_t · max(−s·A, −clip(s, 1 − low, 1 + high)·A)

    s has its value from the whole sequence and its gradient from each token (`sg[s]·π/sg[π]`), so that a token's
    correction w_t scales the gradient of that token alone; with w = 1 it is eq. 5 in value and in gradient.
    A sequence has one advantage: `token_advantage_N` is not used. u_t: the weight of a token (`reduction`).
    """
    log_s_S = _log_ratio(inputs)
    sequence_N = sequence_index(inputs.cu_seqlens)
    s_N = importance_ratio(log_s_S[sequence_N], inputs.logp_N)
    return LossOutput(
        loss=reduce_loss(inputs, clipped_surrogate(s_N, inputs.advantage_S[sequence_N], clip)),
        clipped_U=clip_mask(_capped_exp(log_s_S), inputs.advantage_S, clip),
        advantage_U=inputs.advantage_S,
    )


def gspo_token_loss(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Compute GSPO with an advantage of its own for each token (arXiv 2507.18071, eq. 13 and 14).

        s_t  = sg[s] · π/sg[π]                                   s as in GSPO
        loss = Σ_N u_t · w_t · max(−s_t·A_t, −clip(s_t, 1 − low, 1 + high)·A_t)

    Where all tokens of a sequence have one advantage, it equals GSPO in value and gradient; its clip is counted in
    tokens.
    """
    log_s_N = _log_ratio(inputs)[sequence_index(inputs.cu_seqlens)]
    advantage_N = inputs.advantage_N()
    s_N = importance_ratio(log_s_N, inputs.logp_N)
    return LossOutput(
        loss=reduce_loss(inputs, clipped_surrogate(s_N, advantage_N, clip)),
        clipped_U=clip_mask(_capped_exp(log_s_N), advantage_N, clip),
        advantage_U=advantage_N,
    )


def _log_ratio(inputs: LossInputs) -> Tensor:
    return segment_mean((inputs.logp_N - inputs.old_logp_N).detach(), inputs.cu_seqlens)


def _capped_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(max=LOG_RATIO_CAP).exp()

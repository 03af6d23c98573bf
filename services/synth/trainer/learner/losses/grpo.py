"""Group Relative Policy Optimization (arXiv 2402.03300): the ratio and its clip are each token's."""

from __future__ import annotations

import torch

from synth.trainer.learner.losses.base import (
    Clip,
    LossInputs,
    LossOutput,
    clip_mask,
    clipped_surrogate,
    importance_ratio,
)
from synth.trainer.learner.losses.reduction import reduce_loss


def grpo_loss(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Compute the token-level clipped loss (DeepSeekMath, arXiv 2402.03300, eq. 3, without its KL term).

        r_t  = exp(logp_t − old_logp_t)
        loss = Σ_N u_t · w_t · max(−r_t·A_t, −clip(r_t, 1 − low, 1 + high)·A_t)

    The two ends of the clip are DAPO's (arXiv 2503.14476, "clip-higher"). With `clip.dual` = c, the second clip of Ye
    et al. (arXiv 1912.09729, eq. 5) is on top of it, for a negative advantage alone:

        loss_t = min(loss_t, −c·A_t)                             no gradient where r_t > c and A_t < 0

    A token that became likely since it was sampled, and is unwanted, would otherwise push without a bound.
    u_t: the weight of a token (`reduction`).
    """
    advantage_N = inputs.advantage_N()
    r_N = importance_ratio(inputs.logp_N - inputs.old_logp_N, inputs.logp_N)
    loss_N = clipped_surrogate(r_N, advantage_N, clip)
    clipped_N = clip_mask(r_N.detach(), advantage_N, clip)
    if clip.dual is not None:
        far_N = (advantage_N < 0) & (r_N.detach() > clip.dual)
        loss_N = torch.where(far_N, -clip.dual * advantage_N, loss_N)
        clipped_N = clipped_N | far_N
    return LossOutput(loss=reduce_loss(inputs, loss_N), clipped_U=clipped_N, advantage_U=advantage_N)

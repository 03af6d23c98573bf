"""Group Relative Policy Optimization (arXiv 2402.03300): the ratio and its clip are each token's."""

from __future__ import annotations

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
    """Token-level clipped policy-gradient loss (DeepSeekMath, arXiv 2402.03300, eq. 3, without its KL term).

        r_t  = exp(logp_t − old_logp_t)
        loss = Σ_N u_t · w_t · max(−r_t·A_t, −clip(r_t, 1 − low, 1 + high)·A_t)

    The two ends of the clip are DAPO's (arXiv 2503.14476, "clip-higher"). u_t: what a token weighs (`reduction`).
    """
    advantage_N = inputs.advantage_N()
    r_N = importance_ratio(inputs.logp_N - inputs.old_logp_N, inputs.logp_N)
    return LossOutput(
        loss=reduce_loss(inputs, clipped_surrogate(r_N, advantage_N, clip)),
        clipped_U=clip_mask(r_N.detach(), advantage_N, clip),
        advantage_U=advantage_N,
    )

"""Clipped Importance Sampling Policy Optimization (arXiv 2506.13585): the clip bounds a token's weight, not its update.

Rare tokens at which reasoning turns ("however", "recheck") move far in a first update, and a clip as PPO has it takes
them out of all later ones. CISPO keeps each token's gradient, and bounds how much it counts.
"""

from __future__ import annotations

from synth.trainer.learner.losses.base import Clip, LossInputs, LossOutput, importance_ratio
from synth.trainer.learner.losses.reduction import reduce_loss


def cispo_loss(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Compute the loss with a clipped importance weight (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

        r_t  = exp(logp_t − old_logp_t)
        loss = Σ_N u_t · w_t · −sg[clip(r_t, 1 − low, 1 + high)] · A_t · logp_t

    The gradient is −w_t · clip(r_t) · A_t · ∇logp_t: no token is without one. With low = 1, as in the paper, there is
    no lower bound. The paper's mean is `loss_reduction = "token"`. u_t: the weight of a token (`reduction`).
    clipped: whether the importance weight is held at a bound.
    """
    advantage_N = inputs.advantage_N()
    r_N = importance_ratio(inputs.logp_N - inputs.old_logp_N, inputs.logp_N).detach()
    held_N = r_N.clamp(1 - clip.low, 1 + clip.high)
    return LossOutput(
        loss=reduce_loss(inputs, -held_N * advantage_N * inputs.logp_N),
        clipped_U=(held_N != r_N) & (advantage_N != 0),
        advantage_U=advantage_N,
    )

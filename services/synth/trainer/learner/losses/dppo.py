"""Divergence Proximal Policy Optimization (arXiv 2602.04879): a token whose probability moved far has no gradient.

A ratio does not show how far a policy has moved: from 0.001 to 0.002 it is 2, from 0.5 to 0.99 it is less. The
total variation between "this token" and "any other" is the difference of the two probabilities; DPPO bounds that.
"""

from __future__ import annotations

import torch

from synth.trainer.learner.losses.base import Clip, LossInputs, LossOutput, importance_ratio
from synth.trainer.learner.losses.reduction import reduce_loss


def dppo_loss(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Compute the loss masked by the binary total variation (DPPO-Binary-TV, arXiv 2602.04879).

        r_t  = exp(logp_t − old_logp_t)
        m_t  = 0 where A_t > 0 and π_t − μ_t > high, or A_t < 0 and μ_t − π_t > low, else 1
        loss = Σ_N u_t · w_t · m_t · −r_t·A_t

    The trust region is around μ, the policy that sampled, and not around π_old: a token far from μ is unsafe however it
    got there. w_t is π_old/μ, so that w_t·r_t is the paper's π/μ. u_t: the weight of a token (`reduction`).
    """
    advantage_N = inputs.advantage_N()
    delta_N = inputs.logp_N.detach().exp() - inputs.behaviour_logp_N.exp()
    masked_N = torch.where(advantage_N > 0, delta_N > clip.high, delta_N < -clip.low) & (advantage_N != 0)
    r_N = importance_ratio(inputs.logp_N - inputs.old_logp_N, inputs.logp_N)
    return LossOutput(
        loss=reduce_loss(inputs, torch.where(masked_N, 0.0, -r_N * advantage_N)),
        clipped_U=masked_N,
        advantage_U=advantage_N,
    )

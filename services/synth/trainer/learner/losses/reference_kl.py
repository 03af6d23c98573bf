"""The KL term that holds a policy near its reference model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from synth.trainer.learner.losses.base import LOG_RATIO_CAP, LossInputs, importance_ratio
from synth.trainer.learner.losses.reduction import reduce_loss


@dataclass(frozen=True)
class KlOutput:
    """loss: a scalar to differentiate, normalised like the policy loss. kl_N: of each token, nats, without gradient."""

    loss: Tensor
    kl_N: Tensor


def reference_kl(inputs: LossInputs, reference_logp_N: Tensor) -> KlOutput:
    """Return an unbiased estimate of KL(π ‖ π_ref), in value and in gradient.

        r_t  = exp(logp_t − old_logp_t),  x_t = reference_logp_t − logp_t
        kl_t = w_t · r_t · (e^x_t − 1 − x_t)                       Schulman's k3, joschu.net/blog/kl-approx.html
        loss = Σ_N u_t · kl_t,  with the gradient  −w_t · r_t · x_t · ∇logp_t

    k3 has the right expectation only for samples of π, and its plain derivative is the gradient of the other KL, of
    π_ref from π. Weighting k3 by π/μ (w_t·r_t) and differentiating the weight too corrects both (DeepSeek-V3.2,
    arXiv 2512.02556, "unbiased KL estimate"); the derivative is written out, as its two large terms cancel.
    A rejected sequence adds nothing. u_t: the weight of a token (`reduction`). reference_logp_N: as `inputs.logp_N`,
    without gradient.
    """
    logp_N = inputs.logp_N
    r_N = importance_ratio(inputs.logp_N - inputs.old_logp_N, logp_N).detach()
    # In float64: at 1e-4 the terms of k3 are below float32's resolution.
    x_N = (reference_logp_N - logp_N.detach()).double()
    clamped_N = x_N.clamp(max=LOG_RATIO_CAP)
    value_N = (r_N * (clamped_N.expm1() - clamped_N)).to(logp_N.dtype)
    grad_N = (-r_N * x_N).to(logp_N.dtype)
    loss_N = value_N + grad_N * (logp_N - logp_N.detach())
    return KlOutput(loss=reduce_loss(inputs, loss_N), kl_N=inputs.weight_N * value_N)

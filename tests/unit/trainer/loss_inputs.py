"""Loss inputs, made by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from synth.trainer.learner.losses.base import LossInputs


def loss_inputs(
    logp: Tensor,
    old: Tensor,
    advantages: list[float],
    counts: list[int],
    *,
    behaviour: Tensor | None = None,
    weight: Tensor | None = None,
    keep: list[bool] | None = None,
    token_advantages: Tensor | None = None,
) -> LossInputs:
    """Sequences with `counts` sampled tokens each. By default π_old sampled them, and no weight is corrected.

    Each is a rollout of its own, and all weigh the same.
    """
    return LossInputs(
        logp_N=logp,
        old_logp_N=old,
        behaviour_logp_N=old if behaviour is None else behaviour,
        weight_N=torch.ones_like(logp) if weight is None else weight,
        keep_S=torch.tensor(keep or [True] * len(counts)),
        advantage_S=torch.tensor(advantages, dtype=logp.dtype),
        cu_seqlens=torch.tensor([0, *counts]).cumsum(0),
        token_weight_S=torch.tensor([1 / (len(counts) * max(1, n)) for n in counts], dtype=logp.dtype),
        token_advantage_N=token_advantages,
    )


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    """d loss / d of."""
    (found,) = torch.autograd.grad(loss, of, retain_graph=True)
    return found

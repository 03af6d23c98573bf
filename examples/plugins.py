"""A loss and an advantage of an operator's own, which jobs name as `module:function` (docs/losses.md).

SYNTH_PLUGINS=examples.plugins          # of the validator, the rollouts service and the trainer

[training]
loss = "examples.plugins:tapered"
advantage = "examples.plugins:by_rank"
"""

from __future__ import annotations

import torch

from synth.trainer.learner.losses.base import Clip, LossInputs, LossOutput
from synth.trainer.learner.losses.reduction import reduce_loss


def tapered(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Tapered off-policy REINFORCE (arXiv 2503.14286), by token: a wanted token counts in full, an unwanted one the
    less the rarer it has become.

    ℓ = −A · log π where A > 0, else −sg[clip(π/π_old, 0, 1)] · A · log π; the job's clip is not used.
    """
    advantage_N = inputs.advantage_N()
    ratio_N = (inputs.logp_N.detach() - inputs.old_logp_N).exp()
    held_N = torch.where(advantage_N > 0, torch.ones_like(ratio_N), ratio_N.clamp(max=1.0))
    return LossOutput(
        loss=reduce_loss(inputs, -held_N * advantage_N * inputs.logp_N),
        clipped_U=(ratio_N > 1.0) & (advantage_N < 0),
        advantage_U=advantage_N,
    )


def by_rank(rewards: list[float]) -> list[float]:
    """Return each rollout's rank in its group, from −1 (the worst) to 1 (the best); equal rewards share a rank.

    A reward that is much larger than the others counts no more than one that is a little larger.
    """
    ordered = sorted(rewards)
    places = {r: (ordered.index(r) + len(ordered) - 1 - ordered[::-1].index(r)) / (len(ordered) - 1) for r in rewards}
    return [places[reward] - 1.0 for reward in rewards]

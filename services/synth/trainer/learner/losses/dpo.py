"""Direct Preference Optimization (arXiv 2305.18290): a pair's two completions against each other and the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class DpoOutput:
    """The loss of P pairs. loss_P: to differentiate, nats. chosen_P, rejected_P: implicit rewards, without gradient."""

    loss_P: Tensor
    chosen_P: Tensor
    rejected_P: Tensor

    @property
    def margin_P(self) -> Tensor:
        """The implicit reward of the chosen completion minus that of the rejected one."""
        return self.chosen_P - self.rejected_P


def dpo_loss(logp_P2: Tensor, reference_P2: Tensor, *, beta: float, label_smoothing: float = 0.0) -> DpoOutput:
    """Return each pair's loss (arXiv 2305.18290, eq. 7), with smoothed labels as in Mitchell's note on noisy ones
    (cDPO).

        r    = β · (logp − reference)                                 the implicit reward of a completion
        h    = r_chosen − r_rejected
        loss = −(1 − ε) · log σ(h) − ε · log σ(−h)

    logp_P2: log π of the chosen and of the rejected completion, each summed over its tokens, in nats, float32 or wider,
    with gradient. reference_P2: the same under the reference, without. label_smoothing: ε, how many of the labels are
    taken to be the wrong way round, 0 … below 0.5.
    """
    reward_P2 = beta * (logp_P2 - reference_P2)
    h_P = reward_P2[:, 0] - reward_P2[:, 1]
    loss_P = -(1 - label_smoothing) * logsigmoid(h_P)
    if label_smoothing:
        loss_P = loss_P - label_smoothing * logsigmoid(-h_P)
    chosen_P, rejected_P = reward_P2.detach().unbind(1)
    return DpoOutput(loss_P, chosen_P, rejected_P)


def preference_accuracy(margin_P: Tensor) -> Tensor:
    """Return float64 [P]: 1 if the chosen completion earns more, 0 if it earns less, and 0.5 if they are even."""
    return (torch.sign(margin_P).double() + 1) / 2

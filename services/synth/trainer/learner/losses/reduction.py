"""The weight of a token in the loss, so that the loss of a batch is a mean over rollouts, over tokens or over prompts.

A rollout is one or several sequences: a chat template that drops earlier text starts a branch, and each branch is a
sequence. The branches of a rollout have one advantage, and together weigh as one.

Invariants: a weight is a function of the batch alone, known before the forward, so that micro-batches and ranks change
nothing; the weights of a batch add up to its number of minibatches, so that the mean over its minibatches' losses is
the reduction over the batch, however rollouts fall into minibatches; rollouts that teach nothing have weight too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from synth.trainer.learner.losses.base import LossInputs, segment_sum

Reduction = Literal["sequence", "token", "prompt"]


def token_weights(
    reduction: Reduction,
    tokens_S: npt.NDArray[np.int64],
    rollout_S: npt.NDArray[np.int32],
    group_S: npt.NDArray[np.int32],
    *,
    minibatches: int,
) -> npt.NDArray[np.float64]:
    """Return float64 [S]: the weight of each trained token of each sequence.

        sequence   M / (R · T_r)    a mean over a rollout's tokens, of all its branches, then over the R rollouts (GRPO,
                                    arXiv 2402.03300, eq. 3)
        token      M / T            a mean over all T tokens (DAPO, arXiv 2503.14476, eq. 8)
        prompt     M / (G · T_g)    a mean over the tokens of a prompt's group, then over the G groups (ScaleRL, arXiv
                                    2510.13786)

    tokens_S: how many tokens of each are trained. rollout_S, group_S: the rollout and group of each, any numbers.
    minibatches: M, of the batch. A rollout without a trained token counts among the R, and has no weight.
    """
    if not len(tokens_S):
        return np.zeros(0)
    owner_S = {"sequence": rollout_S, "token": np.zeros_like(rollout_S), "prompt": group_S}[reduction]
    owners, index_S = np.unique(owner_S, return_inverse=True)
    tokens = np.bincount(index_S, weights=tokens_S)
    return minibatches / (len(owners) * np.maximum(tokens[index_S], 1))


def reduce_loss(inputs: LossInputs, loss_N: Tensor) -> Tensor:
    """Return the corrected token losses as one scalar, each times the weight of a token of its sequence.

    A rejected sequence (keep_S False) adds nothing. Its weight is lost, unless `rescaling` gives it to the others.
    """
    loss_S = segment_sum(inputs.weight_N * loss_N, inputs.cu_seqlens)
    return (loss_S * (inputs.token_weight_S * inputs.keep_S)).sum()


def rejected_weight(inputs: LossInputs) -> float:
    """Return how much of a minibatch's weight its rejected sequences have."""
    weight_S = inputs.token_weight_S.double() * inputs.cu_seqlens.diff()
    return float((weight_S * ~inputs.keep_S).sum())


def rescaling(total: float, rejected: float) -> float:
    """Return the factor on the gradient of a minibatch when its rejected sequences leave the normaliser.

    total: the weight of all its sequences; rejected: of the rejected ones. Which sequences are rejected is known only
    after the forward, when the gradient already has the old weights: it is scaled so that the weights of the remaining
    sequences add up to `total`. 1 if none remains, and there is no gradient.
    """
    return total / (total - rejected) if total - rejected > 1e-9 * total else 1.0

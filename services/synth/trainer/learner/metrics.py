"""The metrics of one RL step, under the names that `train.step` reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from synth.trainer.learner.distributed.process_group import ProcessGroup, add_metrics
from synth.trainer.learner.losses.importance_correction import correction_metrics
from synth.trajectories import RolloutBatch


@dataclass(frozen=True)
class MicroBatchMetrics:
    """The metrics of one trained micro-batch.

    rejected: the weight of the sequences that were rejected. sums, correction: as in `StepMetrics`.
    """

    loss: float
    rejected: float
    sums: dict[str, float]
    correction: dict[str, float]

    @classmethod
    def of(
        cls,
        *,
        loss: float,
        rejected: float,
        log_ratio_N: Tensor,
        entropy_N: Tensor,
        advantage_U: Tensor,
        clipped_U: Tensor,
        correction: dict[str, float],
        first_minibatch: bool,
        reference_kl_N: Tensor | None = None,
    ) -> Self:
        """Compute them.

        log_ratio_N: log π/π_old, nats. entropy_N: of the distribution at each token, nats. advantage_U, clipped_U: of
        `LossOutput`, U sequences or tokens, depending on the loss. first_minibatch: whether the micro-batch belongs
        to the step's first minibatch. reference_kl_N: KL(π ‖ π_ref), if there is a reference.
        """
        x = log_ratio_N.double()
        # Schulman's k3 of KL(π_old ‖ π), in float64: at 1e-4 its terms are below float32's resolution.
        kl = float((x.expm1() - x).sum())
        clipped_up = float((clipped_U & (advantage_U > 0)).sum())
        clipped_down = float((clipped_U & (advantage_U < 0)).sum())
        sums = {
            "tokens": float(len(x)),
            "kl": kl,
            "entropy": float(entropy_N.double().sum()),
            "positive": float((advantage_U > 0).sum()),
            "negative": float((advantage_U < 0).sum()),
            "clipped_positive": clipped_up,
            "clipped_negative": clipped_down,
        }
        if reference_kl_N is not None:
            sums["ref_kl"] = float(reference_kl_N.double().sum())
        if first_minibatch:
            sums |= {"first_tokens": float(len(x)), "first_kl": kl, "first_clipped": clipped_up + clipped_down}
        return cls(loss, rejected, sums, correction)


@dataclass
class StepMetrics:
    """Adds up the metrics of a step's micro-batches. lr: the learning rate of the step.

    sums: over tokens, sequences or minibatches. correction: `ImportanceCorrection.sums`. grad_norms: by minibatch.
    minibatch_loss: of the minibatch that is under way.
    """

    lr: float
    sums: dict[str, float] = field(default_factory=dict)
    correction: dict[str, float] = field(default_factory=dict)
    grad_norms: list[float] = field(default_factory=list)
    minibatch_loss: float = 0.0

    def add_micro_batch(self, micro_batch: MicroBatchMetrics) -> None:
        """Add one trained micro-batch."""
        self.minibatch_loss += micro_batch.loss
        add_metrics(self.sums, micro_batch.sums)
        add_metrics(self.correction, micro_batch.correction)

    def add_optimizer_step(self, grad_norm: float, *, scale: float = 1.0) -> None:
        """Add one minibatch. grad_norm: as `Optimizer.step` returned it; 0 if no parameter changed.

        scale: the factor on its gradient.
        """
        self.grad_norms.append(grad_norm)
        add_metrics(self.sums, {"loss": self.minibatch_loss * scale})
        self.minibatch_loss = 0.0

    def all_reduce(self, process_group: ProcessGroup) -> None:
        """Replace the sums by those over all ranks."""
        self.sums = process_group.reduce_metrics(self.sums)
        self.correction = process_group.reduce_metrics(self.correction)

    def compute(self) -> dict[str, float]:
        """Return the metrics of the step: means over tokens, sequences or minibatches.

        Only lr, optimizer_moves and skipped if nothing was trained. A clip rate is a share of the sequences or tokens
        that the loss clips.
        """
        s = self.sums
        optimizer_steps = sum(norm > 0 for norm in self.grad_norms)
        out = {"lr": self.lr, "optimizer_moves": float(optimizer_steps), "skipped": float(not self.grad_norms)}
        if not self.grad_norms:
            return out
        return (
            out
            | correction_metrics(self.correction)
            | ({"ref_kl": s["ref_kl"] / s["tokens"]} if "ref_kl" in s else {})
            | {
                "loss": s["loss"] / len(self.grad_norms),
                "ppo_kl": s["kl"] / s["tokens"],
                "ppo_kl_first": s["first_kl"] / s["first_tokens"],
                "clipped_first": s["first_clipped"],
                "clip_rate_positive": s["clipped_positive"] / max(1.0, s["positive"]),
                "clip_rate_negative": s["clipped_negative"] / max(1.0, s["negative"]),
                "entropy": s["entropy"] / s["tokens"],
                "grad_norm": sum(self.grad_norms) / len(self.grad_norms),
                "grad_norm_max": max(self.grad_norms),
                "trained_tokens": s["tokens"],
            }
        )


def batch_metrics(
    batch: RolloutBatch,
    lag_T: npt.NDArray[np.int32],
    trained_indices: list[int],
    eos_ids: set[int],
) -> dict[str, float]:
    """Return the metrics of the batch itself: rewards, counts, lengths and staleness.

    lag_T: versions between the policy that sampled a token and the one in training. trained_indices: the indices of the
    sequences that were trained. eos_ids: the tokens that end a completion; one without is counted as truncated.
    A metric that the collector computed (`batch.meta.values`) replaces ours: the collector has also seen the groups
    that were dropped.
    """
    rewards = np.array([r.reward for r in batch.meta.rollouts] or [0.0])
    mask = batch.loss_mask
    values = {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_max": float(rewards.max()),
        "groups_kept": float(batch.meta.groups_kept),
        "groups_dropped": float(batch.meta.groups_dropped),
        "sequences": float(batch.sequences),
        "sequences_trained": float(len(trained_indices)),
        "tokens": float(len(batch.tokens)),
    }
    if batch.sequences:
        lengths = np.add.reduceat(mask.astype(np.int64), batch.cu_seqlens[:-1])
        last = batch.cu_seqlens[1:] - 1
        truncated = mask[last] & ~np.isin(batch.tokens[last], list(eos_ids))
        values |= {
            "advantage_min": float(batch.advantages.min()),
            "advantage_max": float(batch.advantages.max()),
            "completion_length_mean": float(lengths.mean()),
            "completion_length_max": float(lengths.max()),
            "completion_truncated_rate": float(truncated.mean()),
            "unique_sequence_rate": _count_unique(batch) / batch.sequences,
        }
    if mask.any():
        lag = lag_T[mask]
        values |= {
            "staleness_mean": float(lag.mean()),
            "staleness_max": float(lag.max()),
            "staleness_share_0": float((lag == 0).mean()),
            "staleness_share_1": float((lag == 1).mean()),
            "staleness_share_2_up": float((lag >= 2).mean()),
        }
    return values | batch.meta.values


def _count_unique(batch: RolloutBatch) -> int:
    return len({batch.tokens[a:b].tobytes() for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)})

"""Rollout batches as a collector would make them, with random log-probabilities or those of a policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import torch

from synth.methods import losses
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.policy import Policy
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta

# Each loss with the clip range that it is used with.
LOSSES: list[dict[str, Any]] = [
    {"loss": spec.name, "clip_low": spec.clip_low, "clip_high": spec.clip_high} for spec in losses.LOSSES.values()
]


def random_batch(
    iteration: int,
    *,
    sequences: int = 16,
    seed: int = 0,
    version: int | None = None,
    zero: int = 0,
    branches_each: int = 1,
) -> RolloutBatch:
    """A batch of random tokens: 6 to 19 of prompt, 1 to 19 sampled; the first `zero` sequences have advantage 0.

    branches_each: how many sequences a rollout has. Groups are of eight sequences.
    """
    rng = np.random.default_rng([seed, iteration])
    branches: list[Branch] = []
    for _ in range(sequences):
        prompt, sampled = int(rng.integers(6, 20)), int(rng.integers(1, 20))
        mask = np.array([False] * prompt + [True] * sampled)
        if sampled > 4:
            mask[prompt + 2] = False  # a tool's token, in the middle of what was sampled
        n = prompt + sampled
        branches.append(
            Branch(
                tokens=rng.integers(5, 300, n).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, -rng.random(n) - 5, 0).astype(np.float32),
                versions=np.where(mask, iteration - 1 if version is None else version, -1).astype(np.int32),
                calls=np.where(mask, 0, -1).astype(np.int32),
            )
        )
    rollout = [i // branches_each for i in range(sequences)]
    drawn = [0.0 if i < zero else float(rng.normal()) for i in range(sequences)]
    # The branches of a rollout have one advantage.
    advantages = [drawn[min(sequences, (r + 1) * branches_each) - 1] for r in rollout]
    meta = BatchMeta(
        job_id="job_test",
        iteration=iteration,
        temperature=1.0,
        rollouts=[
            RolloutMeta(
                rollout_id=f"job_test_t{iteration}_{i}", seed=i, group=i * branches_each // 8, reward=float(i % 2)
            )
            for i in range(len(set(rollout)))
        ],
        groups_kept=sequences // 8,
        groups_dropped=0,
    )
    return RolloutBatch.build(branches, advantages, rollout, meta)


def at_iteration(batch: RolloutBatch, k: int) -> RolloutBatch:
    """The same sequences as the batch of another iteration, sampled by the policy of that iteration's start."""
    return dataclasses.replace(
        batch,
        versions=np.where(batch.loss_mask, k - 1, -1).astype(np.int32),
        meta=msgspec.structs.replace(batch.meta, iteration=k),
    )


def scored_by(policy: Policy, batch: RolloutBatch) -> RolloutBatch:
    """The batch with the policy's own log-probabilities, so that there is no mismatch."""
    sequences = Sequences(batch.tokens, batch.loss_mask.astype(np.float32), batch.cu_seqlens, batch.masks)
    micro = collate(sequences, list(range(batch.sequences)), packing="padded")
    with torch.no_grad():
        logp_N, _ = policy.logprobs(micro, temperature=batch.meta.temperature)
    batch.logprobs[micro.source_N] = logp_N.numpy()
    return batch

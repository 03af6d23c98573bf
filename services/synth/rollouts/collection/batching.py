"""From rewards to a batch: group advantages, which groups are trained, and the sequences of those that are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta

_MIN_REWARD_RANGE = 1e-6
_EPSILON = 1e-6


@dataclass(frozen=True)
class ScoredRollout:
    """One finished rollout of an iteration. seconds: from the first try to the last reply. tries: at least 1."""

    rollout_id: str
    group: int
    seed: int
    reward: float
    branches: list[Branch]
    seconds: float
    tries: int


def advantages(rewards: list[float], *, by_std: bool) -> list[float] | None:
    """The advantages of a group: (r − mean)/(std + 1e-6), or r − mean without `by_std` (Dr.GRPO). None: no signal.

    None also for rewards that differ by less than 1e-6: `std != 0` would be true of rounding noise.
    """
    if not has_signal(rewards):
        return None
    r = np.asarray(rewards, dtype=np.float64)
    centred = r - r.mean()
    return (centred / (r.std() + _EPSILON) if by_std else centred).tolist()


def has_signal(rewards: list[float]) -> bool:
    """Whether a group has a learning signal: at least two rewards, not all equal."""
    return len(rewards) >= 2 and max(rewards) - min(rewards) >= _MIN_REWARD_RANGE


def build_batch(
    rollouts: list[ScoredRollout],
    *,
    job_id: str,
    iteration: int,
    temperature: float,
    groups: int,
    group_size: int,
    by_std: bool,
    values: dict[str, float],
    late: dict[int, int] | None = None,
) -> RolloutBatch:
    """The batch of an iteration. A group that lacks a rollout is dropped whole, as is a group without a signal.

    late: by group, how many rollouts were cut off at its deadline; the group is kept without them.

    Every rollout is in the metadata, so that its reward is counted; only kept groups have sequences. Each branch of a
    rollout is a sequence with the rollout's advantage. Sequences are ordered by group and index, so that the same
    rollouts give the same bytes in whatever order they were collected.
    """
    ordered = sorted(rollouts, key=lambda r: (r.group, _index(r)))
    position = {id(r): i for i, r in enumerate(ordered)}
    branches: list[Branch] = []
    branch_advantages: list[float] = []
    branch_rollouts: list[int] = []
    advantage_of: dict[str, float] = {}
    kept = 0
    for group in range(groups):
        members = [r for r in ordered if r.group == group]
        complete = len(members) + (late or {}).get(group, 0) == group_size
        group_advantages = advantages([m.reward for m in members], by_std=by_std) if complete else None
        if group_advantages is None:
            continue
        kept += 1
        for member, advantage in zip(members, group_advantages, strict=True):
            advantage_of[member.rollout_id] = advantage
            for branch in member.branches:
                branches.append(branch)
                branch_advantages.append(advantage)
                branch_rollouts.append(position[id(member)])
    meta = BatchMeta(
        job_id=job_id,
        iteration=iteration,
        temperature=temperature,
        rollouts=[_rollout_meta(r, advantage_of.get(r.rollout_id)) for r in ordered],
        groups_kept=kept,
        groups_dropped=groups - kept,
        values=values,
    )
    return RolloutBatch.build(branches, branch_advantages, branch_rollouts, meta)


def _rollout_meta(rollout: ScoredRollout, advantage: float | None) -> RolloutMeta:
    return RolloutMeta(
        rollout_id=rollout.rollout_id,
        seed=rollout.seed,
        group=rollout.group,
        reward=rollout.reward,
        advantage=advantage,
        sampled_tokens=[int(b.loss_mask.sum()) for b in rollout.branches],
        oldest_versions=[int(b.versions[b.loss_mask].min()) if b.loss_mask.any() else -1 for b in rollout.branches],
    )


def _index(rollout: ScoredRollout) -> int:
    return int(rollout.rollout_id.rsplit("_", 1)[1])

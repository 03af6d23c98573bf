"""From rewards to a batch: which groups are trained, and the sequences of those that are, with their advantages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from synth.rollouts.rewards.credit import episode_advantages, has_signal, turn_advantages
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta
from synth.trajectories.packing import Float32


@dataclass(frozen=True)
class ScoredRollout:
    """One finished rollout of an iteration. seconds: from the first try to the last reply. tries: at least 1.

    turn_rewards: what each call of the model earned, which add up to the reward. sources: the sums that it was made of,
    without their weights, by their key in `[rubric.weights]`. steps_missing: see `Rewarded`.
    """

    rollout_id: str
    group: int
    seed: int
    reward: float
    turn_rewards: list[float]
    branches: list[Branch]
    seconds: float
    tries: int
    sources: dict[str, float] = field(default_factory=dict[str, float])
    steps_missing: bool = False


def group_has_signal(members: list[ScoredRollout], turn_discount: float | None) -> bool:
    """Whether there is something to learn from the rollouts of a group. turn_discount: as in `build_batch`."""
    return has_signal([[m.reward] if turn_discount is None else m.turn_rewards for m in members], turn_discount)


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
    turn_discount: float | None = None,
    late: dict[int, int] | None = None,
) -> RolloutBatch:
    """The batch of an iteration. A group that lacks a rollout is dropped whole, as is a group without a signal.

    late: by group, how many rollouts were cut off at its deadline; the group is kept without them.
    turn_discount: None: each token has its rollout's advantage; else that of its turn.

    Every rollout is in the metadata, so that its reward is counted; only kept groups have sequences. Each branch of a
    rollout is a sequence. Sequences are ordered by group and index, so that the same
    rollouts give the same bytes in whatever order they were collected.
    """
    ordered = sorted(rollouts, key=lambda r: (r.group, _index(r)))
    position = {id(r): i for i, r in enumerate(ordered)}
    branches: list[Branch] = []
    branch_advantages: list[float] = []
    token_advantages: list[Float32] = []
    branch_rollouts: list[int] = []
    advantage_of: dict[str, float] = {}
    kept = 0
    for group in range(groups):
        members = [r for r in ordered if r.group == group]
        complete = len(members) + (late or {}).get(group, 0) == group_size
        group_advantages = _advantages(members, by_std=by_std, turn_discount=turn_discount) if complete else None
        if group_advantages is None:
            continue
        kept += 1
        for member, by_turn in zip(members, group_advantages, strict=True):
            advantage_of[member.rollout_id] = _mean(member.branches, by_turn)
            for branch in member.branches:
                branches.append(branch)
                branch_advantages.append(_mean([branch], by_turn))
                token_advantages.append(_of_tokens(branch, by_turn))
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
    by_token = None if turn_discount is None else token_advantages
    return RolloutBatch.build(branches, branch_advantages, branch_rollouts, meta, by_token)


def _advantages(members: list[ScoredRollout], *, by_std: bool, turn_discount: float | None) -> list[list[float]] | None:
    """The advantage of each turn of a group's rollouts; None where nothing is learned from the group."""
    turns = [member.turn_rewards for member in members]
    if turn_discount is not None:
        return turn_advantages(turns, turn_discount, by_std=by_std)
    whole = episode_advantages([member.reward for member in members], by_std=by_std)
    return None if whole is None else [[a] * len(t) for a, t in zip(whole, turns, strict=True)]


def _of_tokens(branch: Branch, by_turn: list[float]) -> Float32:
    """float32 [T]: the advantage of each sampled token, 0 elsewhere."""
    return np.where(branch.loss_mask, np.asarray(by_turn)[np.maximum(branch.calls, 0)], 0.0).astype(np.float32)


def _mean(branches: list[Branch], by_turn: list[float]) -> float:
    """The mean advantage of the sampled tokens."""
    if len(set(by_turn)) == 1:
        return by_turn[0]
    calls = np.concatenate([branch.calls[branch.loss_mask] for branch in branches])
    return float(np.asarray(by_turn)[calls].mean()) if len(calls) else 0.0


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

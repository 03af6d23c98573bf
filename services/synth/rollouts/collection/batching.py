"""The step from rewards to a batch: the groups that are trained, and their sequences with advantages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from synth.methods.distillation import DistillationSettings
from synth.methods.rl import Overlong, RlJob
from synth.rollouts.rewards.credit import episode_advantages, reverse_kl, turn_advantages
from synth.rollouts.rewards.plugin import PluginAdvantage
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta
from synth.trajectories.packing import Float32


@dataclass(frozen=True)
class CreditRules:
    """The rules that turn the rewards of a group into advantages.

    by_std: divide by the group's standard deviation. turn_discount: if None, each token has its rollout's advantage;
    else the advantage of its turn. overlong: a rollout whose last reply was cut off is trained as any other ("train");
    or is not trained, though its reward counts in its group ("mask"); or is trained with a reward that is lowered by
    overlong_penalty ("penalise"). The reported reward is the one that was earned. distillation: None if no teacher
    scores the tokens. advantage: replaces by_std and turn_discount; a group whose advantages are all 0 has no signal.
    """

    by_std: bool = True
    turn_discount: float | None = None
    overlong: Overlong = "train"
    overlong_penalty: float = 0.0
    distillation: DistillationSettings | None = None
    advantage: PluginAdvantage | None = None

    @classmethod
    def of(cls, job: RlJob, advantage: PluginAdvantage | None) -> CreditRules:
        """Return the rules of a job, with its plugin if it has one."""
        discount = job.rewards.turn_discount
        return cls(job.advantage_std, discount, job.overlong, job.overlong_penalty, job.distillation, advantage)

    def trains(self, rollout: ScoredRollout) -> bool:
        """Return whether the tokens of a rollout are trained."""
        return not (self.overlong == "mask" and rollout.cut_off)

    @property
    def by_token(self) -> bool:
        """Whether the tokens of a sequence have advantages of their own."""
        return self.turn_discount is not None or self.distillation is not None

    def turn_rewards(self, rollout: ScoredRollout) -> list[float]:
        """Return the reward of each turn of a rollout that its advantage is computed from."""
        *turns, last = rollout.turn_rewards or [0.0]
        return [*turns, last - self._penalty(rollout)]

    def reward(self, rollout: ScoredRollout) -> float:
        """Return the reward of a rollout that its advantage is computed from."""
        return rollout.reward - self._penalty(rollout)

    def _penalty(self, rollout: ScoredRollout) -> float:
        return self.overlong_penalty if self.overlong == "penalise" and rollout.cut_off else 0.0


@dataclass(frozen=True)
class ScoredRollout:
    """One finished rollout of an iteration. seconds: from the first try to the last reply. tries: at least 1.

    turn_rewards: the reward of each model call; they add up to the reward. sources: the sum of each source of the
    reward, before its weight, by its key in `[rubric.weights]`. steps_missing: see `Rewarded`. cut_off: its last reply
    is not complete. images_dropped: the images, over all its calls, that the model was not shown.
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
    cut_off: bool = False
    images_dropped: int = 0


def group_has_signal(members: list[ScoredRollout], credit: CreditRules) -> bool:
    """Return whether there is something to learn from the rollouts of a group."""
    return _advantages(members, credit) is not None


def build_batch(
    rollouts: list[ScoredRollout],
    *,
    job_id: str,
    iteration: int,
    temperature: float,
    groups: int,
    group_size: int,
    credit: CreditRules,
    values: dict[str, float],
    late: dict[int, int] | None = None,
) -> RolloutBatch:
    """Build the batch of an iteration. A group that lacks a rollout is dropped whole, as is a group without a signal.

    late: by group, how many rollouts were cut off at its deadline; the group is kept without them.

    Every rollout is in the metadata, so that its reward is counted. Only kept groups have sequences, and of these only
    the rollouts whose tokens `credit` trains. Each branch of a rollout is a sequence. Sequences are ordered by group
    and index, so that the same rollouts give the same bytes, collected in any order.
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
        group_advantages = _advantages(members, credit) if complete else None
        if group_advantages is None:
            continue
        kept += 1
        for member, by_turn in zip(members, group_advantages, strict=True):
            if not credit.trains(member):
                continue
            of_tokens = [_of_tokens(branch, by_turn, credit.distillation) for branch in member.branches]
            advantage_of[member.rollout_id] = _mean(member.branches, by_turn, of_tokens, credit)
            for branch, advantages in zip(member.branches, of_tokens, strict=True):
                branches.append(branch)
                branch_advantages.append(_mean([branch], by_turn, [advantages], credit))
                token_advantages.append(advantages)
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
    by_token = token_advantages if credit.by_token else None
    return RolloutBatch.build(branches, branch_advantages, branch_rollouts, meta, by_token)


def _advantages(members: list[ScoredRollout], credit: CreditRules) -> list[list[float]] | None:
    """Return the advantage of each turn of a group's rollouts; None if nothing is learned from the group."""
    if not any(credit.trains(member) for member in members):
        return None
    turns = [credit.turn_rewards(member) for member in members]
    result = _of_rewards(turns, [credit.reward(member) for member in members], credit)
    if credit.distillation is None:
        return result
    # A group whose rewards have no signal still learns from the teacher.
    weight = credit.distillation.reward_weight
    return [[weight * a for a in of_turns] for of_turns in result] if result else [[0.0] * len(t) for t in turns]


def _of_rewards(turns: list[list[float]], rewards: list[float], credit: CreditRules) -> list[list[float]] | None:
    if credit.advantage is not None:
        advantages = credit.advantage(rewards)
        return [[a] * len(t) for a, t in zip(advantages, turns, strict=True)] if any(advantages) else None
    if credit.turn_discount is not None:
        return turn_advantages(turns, credit.turn_discount, by_std=credit.by_std)
    whole = episode_advantages(rewards, by_std=credit.by_std)
    return None if whole is None else [[a] * len(t) for a, t in zip(whole, turns, strict=True)]


def _of_tokens(branch: Branch, by_turn: list[float], distillation: DistillationSettings | None) -> Float32:
    """Return float32 [T]: the advantage of each sampled token, 0 elsewhere."""
    result = np.asarray(by_turn)[np.maximum(branch.calls, 0)]
    if distillation is not None:
        result = result - distillation.kl_coef * np.nan_to_num(reverse_kl(branch), nan=0.0)
    return np.where(branch.loss_mask, result, 0.0).astype(np.float32)


def _mean(branches: list[Branch], by_turn: list[float], of_tokens: list[Float32], credit: CreditRules) -> float:
    """Return the mean advantage of the sampled tokens. of_tokens: the result of `_of_tokens` for each branch."""
    if not branches:
        return 0.0  # the client gave up all of its calls, and none of them is trained
    if len(set(by_turn)) == 1 and credit.distillation is None:
        return by_turn[0]
    sampled = np.concatenate([a[branch.loss_mask] for branch, a in zip(branches, of_tokens, strict=True)])
    return float(sampled.mean(dtype=np.float64)) if len(sampled) else 0.0


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

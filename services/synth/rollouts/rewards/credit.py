"""Advantages: what a rollout, or a turn of it, earned beyond its group, and what a teacher says of a token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from synth.trajectories import Branch

_MIN_REWARD_RANGE = 1e-6
_EPSILON = 1e-6


def episode_advantages(rewards: list[float], *, by_std: bool) -> list[float] | None:
    """The advantages of a group: (r − mean)/(std + 1e-6), or r − mean without `by_std` (Dr.GRPO). None: no signal.

    None also for rewards that differ by less than 1e-6: `std != 0` would be true of rounding noise.
    """
    if not has_signal([[r] for r in rewards], None):
        return None
    r = np.asarray(rewards, dtype=np.float64)
    centred = r - r.mean()
    return (centred / (r.std() + _EPSILON) if by_std else centred).tolist()


def turn_advantages(turns: list[list[float]], discount: float, *, by_std: bool) -> list[list[float]] | None:
    """The advantage of each turn of a group's rollouts. None: no signal.

    turns: what each turn earned, by rollout. The return of turn t is G_t = Σ_k≥t discount^(k−t) · r_k (REINFORCE with
    reward to go); its baseline is the mean of G_t over the group, in which a rollout that is over has 0. The whole
    group has one scale, the root of the mean squared difference, so that turns are not blown up in which all rollouts
    did about the same.
    """
    if not has_signal(turns, discount):
        return None
    returns = _returns(turns, discount)
    centred = returns - returns.mean(axis=0)
    lived = np.asarray([[t < len(r) for t in range(returns.shape[1])] for r in turns])
    scale = np.sqrt((centred[lived] ** 2).mean()) + _EPSILON if by_std else 1.0
    return [(centred[i, : len(r)] / scale).tolist() for i, r in enumerate(turns)]


def reverse_kl(branch: Branch) -> npt.NDArray[np.float64]:
    """float64 [T]: log μ − log π_teacher of each sampled token, in nats: NaN where the teacher was not asked, and of
    tokens that were not sampled.

    Its mean over tokens that the policy sampled estimates the reverse KL, KL(μ ‖ π_teacher) (on-policy distillation:
    MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649; per token without a discount as in Thinking Machines' "On-Policy
    Distillation", 2025).
    """
    if branch.teacher_logprobs is None:
        return np.full(len(branch.tokens), np.nan)
    found = branch.logprobs.astype(np.float64) - branch.teacher_logprobs.astype(np.float64)
    return np.where(branch.loss_mask, found, np.nan)


def has_signal(turns: list[list[float]], discount: float | None) -> bool:
    """Whether a group has a learning signal: two rollouts at least, whose rewards differ, or the returns of a turn.

    turns: what each turn earned, by rollout. discount: None: each rollout has one advantage.
    """
    if len(turns) < 2:
        return False
    values = np.asarray([[sum(r)] for r in turns]) if discount is None else _returns(turns, discount)
    return bool((values.max(axis=0) - values.min(axis=0) >= _MIN_REWARD_RANGE).any())


def _returns(turns: list[list[float]], discount: float) -> npt.NDArray[np.float64]:
    """float64 [rollouts, most turns]: the returns, 0 beyond a rollout's end."""
    returns = np.zeros((len(turns), max(map(len, turns), default=0)))
    for i, rewards in enumerate(turns):
        ahead = 0.0
        for t in range(len(rewards) - 1, -1, -1):
            ahead = rewards[t] + discount * ahead
            returns[i, t] = ahead
    return returns

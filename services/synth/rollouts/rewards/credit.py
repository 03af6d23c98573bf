"""Advantages: the reward of a rollout, or of a turn, relative to its group, and a teacher's score of a token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from synth.trajectories import Branch

_MIN_REWARD_RANGE = 1e-6
_EPSILON = 1e-6


def episode_advantages(rewards: list[float], *, by_std: bool) -> list[float] | None:
    """Return a group's advantages: (r − mean)/(std + 1e-6), or r − mean without `by_std` (Dr.GRPO). None: no signal.

    Returns None also for rewards that differ by less than 1e-6: `std != 0` would be true for rounding noise.
    """
    if not has_signal([[r] for r in rewards], None):
        return None
    r = np.asarray(rewards, dtype=np.float64)
    centred = r - r.mean()
    return (centred / (r.std() + _EPSILON) if by_std else centred).tolist()


def turn_advantages(turns: list[list[float]], discount: float, *, by_std: bool) -> list[list[float]] | None:
    """Return the advantage of each turn of a group's rollouts. None: no signal.

    turns: the reward of each turn, by rollout. The return of turn t is G_t = Σ_k≥t discount^(k−t) · r_k (REINFORCE with
    reward to go). Its baseline is the mean of G_t over the group, in which a rollout that is over has 0. The whole
    group has one scale, the root of the mean squared difference, so that a turn with almost the same return in all
    rollouts is not scaled up.
    """
    if not has_signal(turns, discount):
        return None
    returns = _returns(turns, discount)
    centred = returns - returns.mean(axis=0)
    lived = np.asarray([[t < len(r) for t in range(returns.shape[1])] for r in turns])
    scale = np.sqrt((centred[lived] ** 2).mean()) + _EPSILON if by_std else 1.0
    return [(centred[i, : len(r)] / scale).tolist() for i, r in enumerate(turns)]


def reverse_kl(branch: Branch) -> npt.NDArray[np.float64]:
    """Return float64 [T]: log μ − log π_teacher of each sampled token, in nats.

    It is NaN for tokens that the teacher did not score, and for tokens that were not sampled.

    Its mean over tokens that the policy sampled estimates the reverse KL, KL(μ ‖ π_teacher) (on-policy distillation:
    MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649; per token without a discount as in Thinking Machines' "On-Policy
    Distillation", 2025).
    """
    if branch.teacher_logprobs is None:
        return np.full(len(branch.tokens), np.nan)
    result = branch.logprobs.astype(np.float64) - branch.teacher_logprobs.astype(np.float64)
    return np.where(branch.loss_mask, result, np.nan)


def has_signal(turns: list[list[float]], discount: float | None) -> bool:
    """Return whether a group has a learning signal: two or more rollouts that differ in reward or a turn's return.

    turns: the reward of each turn, by rollout. discount: None: each rollout has one advantage.
    """
    if len(turns) < 2:
        return False
    values = np.asarray([[sum(r)] for r in turns]) if discount is None else _returns(turns, discount)
    return bool((values.max(axis=0) - values.min(axis=0) >= _MIN_REWARD_RANGE).any())


def _returns(turns: list[list[float]], discount: float) -> npt.NDArray[np.float64]:
    """Return float64 [rollouts, most turns]: the returns, 0 beyond a rollout's end."""
    returns = np.zeros((len(turns), max(map(len, turns), default=0)))
    for i, rewards in enumerate(turns):
        ahead = 0.0
        for t in range(len(rewards) - 1, -1, -1):
            ahead = rewards[t] + discount * ahead
            returns[i, t] = ahead
    return returns

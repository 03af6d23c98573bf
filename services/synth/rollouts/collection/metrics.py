"""The metrics of a collection: its rewards, its rollouts and their failures, its times."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from synth.estimates.repeated import as_values, estimates
from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.rewards.credit import reverse_kl

_PLAIN = RewardSettings()


def collection_metrics(
    rollouts: list[ScoredRollout], *, failed: int, rewards: RewardSettings = _PLAIN
) -> dict[str, float]:
    """Return the metrics of a collection, which `train.step` and `eval.completed` repeat. Seconds are wall-clock."""
    if not rollouts:
        return {"rollouts": 0.0, "rollouts_failed": float(failed)}
    seconds = np.asarray([r.seconds for r in rollouts])
    sampled = np.asarray([sum(int(b.loss_mask.sum()) for b in r.branches) for r in rollouts])
    earned = np.asarray([r.reward for r in rollouts])
    return {
        "rollouts": float(len(rollouts)),
        "rollouts_failed": float(failed),
        "rollout_retries": float(sum(r.tries - 1 for r in rollouts)),
        "rollout_seconds_p50": float(np.quantile(seconds, 0.5)),
        "rollout_seconds_p99": float(np.quantile(seconds, 0.99)),
        "reward_mean": float(earned.mean()),
        "reward_std": float(earned.std()),
        "reward_max": float(earned.max()),
        **_source_metrics(rollouts, rewards),
        "completion_tokens_mean": float(sampled.mean()),
        "completion_unique_rate": len({(r.group, _sampled(r)) for r in rollouts}) / len(rollouts),
        "branch_breaks": float(sum(max(0, len(r.branches) - 1) for r in rollouts)),
        "rollouts_cut_off": float(sum(r.cut_off for r in rollouts)),
        **_image_metrics(rollouts),
        **_teacher_metrics(rollouts),
    }


def _image_metrics(rollouts: list[ScoredRollout]) -> dict[str, float]:
    """Return the number of images that were not shown to the model, over all calls; empty if no model reads images."""
    dropped = sum(r.images_dropped for r in rollouts)
    seen = dropped or any(branch.processor for r in rollouts for branch in r.branches)
    return {"images_dropped": float(dropped)} if seen else {}


def _teacher_metrics(rollouts: list[ScoredRollout]) -> dict[str, float]:
    """Return the mean of log μ − log π_teacher over the sampled tokens, in nats; empty if no teacher scored any."""
    results = [reverse_kl(branch) for rollout in rollouts for branch in rollout.branches]
    requested = [kl[np.isfinite(kl)] for kl in results]
    return {"teacher_kl": float(np.concatenate(requested).mean())} if any(map(len, requested)) else {}


def evaluation_metrics(
    rollouts: list[ScoredRollout],
    *,
    failed: int,
    rewards: RewardSettings,
    rollouts_per_seed: int,
    success_threshold: float | None,
) -> dict[str, float]:
    """Return the metrics of an evaluation: the metrics of its collection, and the estimates from repeated rollouts."""
    return collection_metrics(rollouts, failed=failed, rewards=rewards) | repeated_metrics(
        rollouts, rewards=rewards, rollouts_per_seed=rollouts_per_seed, success_threshold=success_threshold
    )


def repeated_metrics(
    rollouts: list[ScoredRollout], *, rewards: RewardSettings, rollouts_per_seed: int, success_threshold: float | None
) -> dict[str, float]:
    """Return mean@k and pass@k with their intervals (`synth.estimates.repeated`).

    The reward of `rollout.completed` decides a success: judges score how good a rollout is, not whether it succeeded.
    """
    reported: defaultdict[int, list[float]] = defaultdict(list)
    completed: defaultdict[int, list[float]] = defaultdict(list)
    for rollout in rollouts:
        reported[rollout.seed].append(rollout.reward)
        completed[rollout.seed].append(rollout.reward if rewards.judging is None else rollout.sources["env"])
    return as_values(estimates(reported, completed, n=rollouts_per_seed, threshold=success_threshold))


def _sampled(rollout: ScoredRollout) -> bytes:
    """Return the tokens that the policy sampled in a rollout, as bytes to compare."""
    return b"".join(b.tokens[b.loss_mask].tobytes() for b in rollout.branches)


def _source_metrics(rollouts: list[ScoredRollout], rewards: RewardSettings) -> dict[str, float]:
    """Return mean and spread of each reward source, and its share: its part of the sum of the weighted mean sizes."""
    result: dict[str, float] = {}
    if rewards.steps is not None:
        result["step_rewards_missing"] = float(sum(r.steps_missing for r in rollouts))
    if rewards.scores == "none":
        return result
    weights = msgspec.structs.asdict(rewards.weights)
    paid = {name: np.asarray([r.sources.get(name, 0.0) for r in rollouts]) for name in weights}
    moved = {name: abs(weights[name]) * float(np.abs(values).mean()) for name, values in paid.items()}
    for name, values in paid.items():
        if any(name in r.sources for r in rollouts):
            result[f"reward_{name}_mean"] = float(values.mean())
            result[f"reward_{name}_std"] = float(values.std())
            result[f"reward_{name}_share"] = moved[name] / (sum(moved.values()) or 1.0)
    return result

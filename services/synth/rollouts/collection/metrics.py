"""The metrics of a collection: its rewards, its rollouts and their failures, its times."""

from __future__ import annotations

import numpy as np

from synth.rollouts.collection.batching import ScoredRollout


def collection_metrics(rollouts: list[ScoredRollout], *, failed: int) -> dict[str, float]:
    """The metrics of a collection, which `train.step` and `eval.completed` repeat. Seconds are wall-clock seconds."""
    if not rollouts:
        return {"rollouts": 0.0, "rollouts_failed": float(failed)}
    seconds = np.asarray([r.seconds for r in rollouts])
    sampled = np.asarray([sum(int(b.loss_mask.sum()) for b in r.branches) for r in rollouts])
    rewards = np.asarray([r.reward for r in rollouts])
    return {
        "rollouts": float(len(rollouts)),
        "rollouts_failed": float(failed),
        "rollout_retries": float(sum(r.tries - 1 for r in rollouts)),
        "rollout_seconds_p50": float(np.quantile(seconds, 0.5)),
        "rollout_seconds_p99": float(np.quantile(seconds, 0.99)),
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "completion_tokens_mean": float(sampled.mean()),
        "completion_unique_rate": len({(r.group, _sampled(r)) for r in rollouts}) / len(rollouts),
        "branch_breaks": float(sum(len(r.branches) - 1 for r in rollouts)),
    }


def _sampled(rollout: ScoredRollout) -> bytes:
    """The tokens that the policy sampled in a rollout, as bytes to compare."""
    return b"".join(b.tokens[b.loss_mask].tobytes() for b in rollout.branches)

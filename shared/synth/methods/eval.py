"""Evaluation of a model."""

from __future__ import annotations

from typing import Any

from synth.methods.base import JobMethod, PlayedJob, RolloutCount, VisionSettings
from synth.methods.rewards import RewardSettings
from synth.methods.rollouts import RepeatKeys, RolloutSettings


class EvalJob(PlayedJob, RepeatKeys, JobMethod, frozen=True, kw_only=True, tag="eval"):
    """`rollouts_per_seed` rollouts of `model` on each seed. vision: None for a text model. rewards: of each rollout.

    label: as of `RlJob`.
    success_threshold: the least reward that pass@k takes for a success; None: there is no pass@k.
    """

    method = "eval"
    tasks = ("serve", "collect")

    label: str | None = None
    model: str
    base_model: str
    seeds: list[int]
    rollout: RolloutSettings
    tags: dict[str, Any]
    vision: VisionSettings | None = None
    rewards: RewardSettings = RewardSettings()

    @property
    def first_seed(self) -> int:
        return self.seeds[0]

    @property
    def rollout_counts(self) -> list[RolloutCount]:
        return [count_evaluation("the", self.seeds, self.rollouts_per_seed, "")]

    def summary(self) -> str:
        each = f", {self.rollouts_per_seed} rollouts each," if self.rollouts_per_seed > 1 else ""
        return f"evaluation of {self.model} on {len(self.seeds)} seeds{each} at {self.rollout.task_url}"


def count_evaluation(article: str, seeds: list[int], each: int, prefix: str) -> RolloutCount:
    """Return the rollouts of an evaluation. prefix: of the fields that decide their number."""
    what = f"{article} evaluation, {len(seeds):,} seeds x {each:,} rollouts,"
    return RolloutCount(what, len(seeds) * each, (f"{prefix}rollouts_per_seed", f"{prefix}seeds"))

"""What a rollout of a job earns, with every default applied."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.judging.settings import Judging


class StepRewards(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of single turns, in place of the episode's own.

    mode: "decision_stepwise": what the task app says that each decision earned. "env_sparse": what its environment paid
    in each step. kind: what counts of a decision: "unique": what was reached for the first time in the episode;
    "absolute": each time.
    indicator_lambda: for a decision that reached something new, where the app counts achievements and weighs nothing.
    beta: beta · (T − t) for turn t (from 0) of T where it reached something new.
    """

    mode: Literal["decision_stepwise", "env_sparse"]
    kind: Literal["unique", "absolute"] = "unique"
    indicator_lambda: float = 0.0
    beta: float = 0.0


class RewardWeights(msgspec.Struct, frozen=True, kw_only=True):
    """reward = env · environment + event · Σ events + outcome · outcome. At least one of them is above 0."""

    env: float = 1.0
    event: float = 0.0
    outcome: float = 0.0


class RewardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout earns. steps: None: the environment's own reward of the episode.

    scores: who gives events and outcome: nobody, the task app's answer (`metrics.events_score`, `outcome_score`), or
    judges (`judging`). "grader": nobody, and the environment's reward is that of a grader that asks the judges.
    turn_discount: None: each token has its rollout's advantage; else turn t has that of its return
    Σ_k≥t turn_discount^(k−t) · r_k.
    """

    steps: StepRewards | None = None
    weights: RewardWeights = RewardWeights()
    scores: Literal["none", "task_app", "judges", "grader"] = "none"
    judging: Judging | None = None
    turn_discount: float | None = None

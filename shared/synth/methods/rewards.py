"""The rewards of a job's rollouts, with every default applied."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.judging.settings import Judging
from synth.tables.keys import JobSettings, NonNegativeFloat, keys


class StepRewards(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of single turns, in place of the episode's own.

    mode: "decision_stepwise": the reward that the task app reports for each decision. "env_sparse": the reward that its
    environment paid in each step. kind: the achievements of a decision that count: "unique": the ones that the episode
    reaches for the first time; "absolute": all, each time. indicator_lambda: the reward of a decision that reached
    something new, if the app counts achievements and does not weigh them. beta: beta · (T − t) for turn t (from 0) of T
    if it reached something new.
    """

    mode: Literal["decision_stepwise", "env_sparse"]
    kind: Literal["unique", "absolute"] = "unique"
    indicator_lambda: float = 0.0
    beta: float = 0.0


@keys
class WeightKeys:
    """Keys of `[rubric.weights]`."""

    __slots__ = ()

    env: NonNegativeFloat = 1.0
    """of the environment's reward"""
    event: NonNegativeFloat = 0.0
    """of the scores of the turns, which are added up"""
    outcome: NonNegativeFloat = 0.0
    """of the score of the whole episode"""


class RewardWeights(WeightKeys, JobSettings, frozen=True, kw_only=True):
    """reward = env · environment + event · Σ events + outcome · outcome. At least one of them is above 0."""


class RewardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout is rewarded. steps: None is the environment's own reward of the episode.

    scores: the source of the scores of events and outcome: none, the task app's answer (`metrics.events_score`,
    `outcome_score`), or judges (`judging`). "grader": none, and the environment's reward is a grader's, which
    calls the judges. turn_discount: None: each token has its rollout's advantage; else turn t has the advantage of its
    return Σ_k≥t turn_discount^(k−t) · r_k.
    """

    steps: StepRewards | None = None
    weights: RewardWeights = RewardWeights()
    scores: Literal["none", "task_app", "judges", "grader"] = "none"
    judging: Judging | None = None
    turn_discount: float | None = None

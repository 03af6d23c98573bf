"""What an RL job says of its rewards beside the environment's own: credit for single steps, judges, rubrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from synth.jobs.schema.sections import Free, Name, NonNegativeFloat, Positive, PositiveFloat, Section


class RewardsSection(Section):
    """`[training.rewards]`: credit for single steps."""

    step_rewards_enabled: bool | None = None
    """credit single steps"""
    step_rewards_mode: Literal["off", "decision_stepwise", "env_sparse"] | None = None
    """where a step's reward comes from"""
    step_rewards_indicator_lambda: float | None = None
    """added to a step that reached something new"""
    step_rewards_beta: float | None = None
    """weight of reaching it early"""
    step_rewards_strategy: Literal["simple", "consistent", "per_achievement", "complex"] | None = None
    """how achievements are weighed"""
    event_rewards_kind: Literal["unique", "absolute"] | None = None
    """whether an achievement counts once"""


class JudgeOptionsSection(Section):
    """`[judge.options]`: what is asked of the judge."""

    event: bool | None = None
    """score every step"""
    outcome: bool | None = None
    """score the whole episode"""
    provider: Name | None = None
    """who serves the judge's model"""
    model: Name | None = None
    """the judge's model"""
    rubric_id: Name | None = None
    """a stored rubric"""
    rubric_overrides: Free | None = None
    """goals and criteria in place of the stored ones"""
    tracks: list[Name] | None = None
    """groups of criteria that are scored"""
    weights: dict[str, float] | None = None
    """of the tracks"""
    max_concurrency: Positive | None = None
    """calls at one time"""
    timeout_s: PositiveFloat | None = None
    """seconds a call"""
    metadata: Free | None = None
    """sent along"""


class JudgeSection(Section):
    """`[judge]`: a model that scores rollouts."""

    enabled: bool | None = None
    """whether it is used"""
    type: str | None = None
    """of judge"""
    timeout_s: PositiveFloat | None = None
    """seconds a call"""
    reward_blend: dict[str, float] | None = None
    """weights of env, event and outcome"""
    options: JudgeOptionsSection | None = None
    """what is asked of it"""


class RubricWeightsSection(Section):
    """`[rubric.weights]`."""

    env: NonNegativeFloat = 1.0
    """of the environment's return"""
    event: NonNegativeFloat = 0.0
    """of the judge's event scores"""
    outcome: NonNegativeFloat = 0.0
    """of the judge's outcome score"""


class RubricTrackSection(Section):
    """`[rubric.event]` and `[rubric.outcome]`: the criteria of one track."""

    rubric_id: Name | None = None
    """a stored rubric"""
    criteria: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    """tables of key, description, weight and aggregation"""


class RubricSection(Section):
    """`[rubric]`: how the judge's scores enter the reward."""

    enabled: bool | None = None
    """whether they do"""
    model: Name | None = None
    """the judge's model"""
    api_base: str | None = None
    """where it is served"""
    api_key_env: str | None = None
    """the environment variable with its key"""
    weights: RubricWeightsSection | None = None
    """total = env x return + event x sum of event scores + outcome x outcome score"""
    event: RubricTrackSection | None = None
    """criteria of every step"""
    outcome: RubricTrackSection | None = None
    """criteria of the whole episode"""

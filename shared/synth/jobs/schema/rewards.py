"""The rewards of an RL job beside the environment's own: credit for single steps, judges, rubrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from synth.jobs.schema.sections import Free, Section
from synth.judging.settings import (
    MAX_CONCURRENCY,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    JudgeKeys,
    JudgeLimitKeys,
    KeyName,
)
from synth.methods.rewards import WeightKeys
from synth.tables.keys import MAX_ELEMENTS, Fraction, Name, NonNegativeFloat

CallSeconds = Annotated[float, Field(ge=MIN_TIMEOUT_S, le=MAX_TIMEOUT_S)]


class RewardsSection(Section, frozen=True):
    """`[training.rewards]`: credit for single steps."""

    step_rewards_enabled: bool | None = None
    """whether the environment's reward is what its single steps earned, in place of the episode's own; also given to
    the task app, as `step_rewards` of its policy's configuration; default: true if `step_rewards_mode` names a mode"""
    step_rewards_mode: Literal["off", "decision_stepwise", "env_sparse"] | None = None
    """decision_stepwise: the reward that the app reports for each decision; env_sparse: the reward that its environment
    paid in each step. Default: decision_stepwise"""
    step_rewards_indicator_lambda: float | None = None
    """the reward of a decision that reached something new: the factor that the app applies, or that is applied here to
    an app's bare counts of achievements; default: the app's own"""
    step_rewards_beta: float | None = None
    """of T decisions, number t (from 0) earns this times T - t more if it reached something new; default: 0"""
    step_rewards_strategy: Literal["simple", "consistent", "per_achievement", "complex"] | None = None
    """how the task app weighs achievements: simple or consistent: the same for any; per_achievement or complex: by
    `step_rewards_weights`; default: the app's own"""
    event_rewards_kind: Literal["unique", "absolute"] | None = None
    """unique: an achievement counts only the first time that the episode reaches it, by the app's own figure; absolute:
    it counts each time, by its count; default: unique"""
    turn_credit: Literal["episode", "return_to_go"] | None = None
    """the rewards that make a token's advantage: episode: of its whole rollout; return_to_go: of its turn
    and the turns after it, for the losses gspo_token, grpo, dppo and cispo. Default: return_to_go, if turns have
    rewards of their own and the loss is one of those"""
    turn_discount: Fraction | None = None
    """return_to_go of turn t is the sum of turn_discount^(k - t) x reward of turn k, over k from t; default: 1"""


class RubricWeightsSection(WeightKeys, Section, frozen=True):
    """`[rubric.weights]`: reward = env x environment + event x sum of events + outcome x outcome."""


class JudgeOptionsSection(Section, frozen=True):
    """`[judge.options]`: the judge's task."""

    event: bool | None = None
    """whether each turn is scored; default: true if `[rubric.weights] event` is above 0"""
    outcome: bool | None = None
    """whether the whole episode is scored; default: true if `[rubric.weights] outcome` is above 0, or if nothing else
    is scored"""
    provider: Name | None = None
    """who serves the judge's model: a provider of `SYNTH_JUDGE_PROVIDERS`, or "synth" for a model of this cluster"""
    model: Name | None = None
    """the judge's model"""
    rubric_id: Name | None = None
    """the name of the rubric that `rubric_overrides` or the task app has; rubrics are not stored elsewhere"""
    rubric_overrides: Free | None = None
    """`event` and `outcome`, each with `goal_text`, `aggregation` and `criteria`; they replace those tables of
    `[rubric]` or of the task app"""
    tracks: Annotated[list[Name], Field(max_length=MAX_ELEMENTS)] | None = None
    """the criteria that are scored, by the first part of their ids (`progress` of `progress.depth`); default: all of
    them"""
    weights: dict[str, NonNegativeFloat] | None = None
    """factors of the criteria's weights, by the first part of their ids; default: 1"""
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 8
    """concurrent calls of a judge, over the cluster"""
    timeout_s: CallSeconds = 60.0
    """seconds a call; the same as `[judge] timeout_s`"""
    metadata: Free | None = None
    """metadata of the client's own request; the cluster itself calls the judges, and sends it nowhere"""


class JudgeModelSection(JudgeKeys, Section, frozen=True):
    """One of `[[judge.judges]]`: a model that judges, beside others."""


class JudgeSection(JudgeLimitKeys, Section, frozen=True):
    """`[judge]`: a model that scores rollouts."""

    enabled: bool | None = None
    """whether the judge is used; default: true if a model is named"""
    type: Name | None = None
    """who serves the judge's model, if `[judge.options] provider` is not set"""
    timeout_s: CallSeconds | None = None
    """the same as `[judge.options] timeout_s`"""
    reward_blend: RubricWeightsSection | None = None
    """the same as `[rubric.weights]`"""
    options: JudgeOptionsSection | None = None
    """the judge's task"""
    judges: Annotated[list[JudgeModelSection], Field(max_length=MAX_ELEMENTS)] | None = None
    """several judges, in place of `[judge.options] model`"""
    ranking: bool = False
    """whether the rollouts of a group are put in an order by one call, for their outcome: from 0 for the last to 1 for
    the first"""


class RubricTrackSection(Section, frozen=True):
    """`[rubric.event]` and `[rubric.outcome]`: the criteria of one track."""

    rubric_id: Name | None = None
    """the name of the rubric; rubrics are not stored elsewhere, so that `criteria` are needed"""
    criteria: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ELEMENTS)] | None = None
    """tables of id (or key), description, weight and scale: bounded (0 to 1), binary (0 or 1) or count (0, 1, 2 …)"""


class RubricSection(Section, frozen=True):
    """`[rubric]`: how the judge's scores enter the reward."""

    enabled: bool | None = None
    """whether they do; default: true if `weights` are given"""
    model: Name | None = None
    """the judge's model, if `[judge]` names none; otherwise it must be the same model"""
    api_base: str | None = None
    """the OpenAI-compatible API that serves it, `https://…/v1`"""
    api_key_env: KeyName | None = None
    """the name of the organisation's stored key that opens it"""
    weights: RubricWeightsSection | None = None
    """of the sources of the reward"""
    event: RubricTrackSection | None = None
    """criteria of every step"""
    outcome: RubricTrackSection | None = None
    """criteria of the whole episode"""

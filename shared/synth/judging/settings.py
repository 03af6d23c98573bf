"""How the rollouts of a job are judged, with every default applied, as in `job.validated`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import Field

from synth.tables.keys import JobSettings, Name, NonNegativeFloat, Positive, PositiveFloat, keys

#: The possible scores of a criterion: any number of 0 … 1; 0 or 1; a whole number from 0 on.
Scale = Literal["bounded", "binary", "count"]
#: How the scores of a track's criteria become its total.
Aggregation = Literal["weighted_mean", "sum"]

MAX_VOTES = 64
"""Votes of one judge: its score is their median, which more of them hardly move."""
MAX_ATTEMPTS = 20
"""Calls for one answer that can be read."""
MAX_CONCURRENCY = 1024
"""Concurrent calls of one judge."""
MIN_TIMEOUT_S = 1.0
"""Seconds of one call: in less than this no model judges."""
MAX_TIMEOUT_S = 3600.0
"""Seconds of one call."""

#: As `synthctl keys judge add` takes it.
KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a judge scores. weight: in the total of its track, above 0."""

    id: str
    description: str
    weight: float = 1.0
    scale: Scale = "bounded"


class Rubric(msgspec.Struct, frozen=True, kw_only=True):
    """The criteria of each event (a call of the model), and of the whole episode. goal: the purpose of the policy.

    The total of a track is Σ weight · score / Σ weight of its criteria, with aggregation "sum" Σ weight · score.
    event_goal, event_aggregation: of the events, if they differ.
    """

    event: list[Criterion] = []
    outcome: list[Criterion] = []
    goal: str = ""
    aggregation: Aggregation = "weighted_mean"
    event_goal: str = ""
    event_aggregation: Aggregation | None = None


@keys
class JudgeKeys:
    """Keys of `[[judge.judges]]`."""

    __slots__ = ()

    model: Name
    """the judge's model"""
    provider: Name | None = None
    """a provider of `SYNTH_JUDGE_PROVIDERS`, or "synth" for a model of this cluster"""
    url: Name | None = None
    """an OpenAI-compatible API of your own, `https://…/v1`, in place of a provider"""
    key: KeyName | None = None
    """the name of the organisation's stored key that opens `url`"""
    temperature: NonNegativeFloat = 0.0
    """of its sampling"""
    max_tokens: Positive = 1024
    """of one answer"""
    votes: Annotated[int, Field(ge=1, le=MAX_VOTES)] = 1
    """how many answers it gives to each rollout; its score is their median"""
    weight: PositiveFloat = 1.0
    """among the judges, whose scores are averaged"""


@keys
class JudgeLimitKeys:
    """Keys of `[judge]`: the limits on the calls of judges."""

    __slots__ = ()

    requests_per_second: PositiveFloat | None = None
    """the most calls in any second, over the cluster; default: no limit but the provider's own"""
    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] = 3
    """the most calls for one readable answer; a rollout without one is left out, and its group with it"""
    max_calls: Positive | None = None
    """the most calls of judges in the whole job; the job ends after them; default: no limit"""
    max_cost: PositiveFloat | None = None
    """the most that they may cost, by the prices in `SYNTH_JUDGE_PROVIDERS`; default: no limit"""
    max_outage_s: PositiveFloat = 3600.0
    """seconds that a rollout waits for unavailable judges before the job ends"""


class JudgeModel(JudgeKeys, JobSettings, frozen=True, kw_only=True):
    """One judge: a model behind an OpenAI-compatible chat API."""


class Judging(JudgeLimitKeys, JobSettings, frozen=True, kw_only=True):
    """How rollouts are judged.

    rubric: None: the task app's own, from its `/task_info`. event, outcome: which tracks are scored.
    ranking: the rollouts of a group are put in an order by one call, and the outcome score is the place in it, from 0
    (last) to 1 (first); otherwise, and in evaluations, each rollout is scored for itself.
    max_concurrency: concurrent calls of a judge, over the cluster. timeout_s: of one call.
    """

    judges: list[JudgeModel]
    rubric: Rubric | None = None
    event: bool = False
    outcome: bool = True
    ranking: bool = False
    max_concurrency: int = 8
    timeout_s: float = 60.0

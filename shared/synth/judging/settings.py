"""How the rollouts of a job are judged, with every default applied, as in `job.validated`."""

from __future__ import annotations

from typing import Literal

import msgspec

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


class JudgeModel(msgspec.Struct, frozen=True, kw_only=True):
    """One judge: a model behind an OpenAI-compatible chat API.

    provider: a provider that the cluster's operator has set up (`SYNTH_JUDGE_PROVIDERS`), or "synth": this cluster
    serves `model`. url: an API of the user's own (`…/v1`), in place of a provider. key: the name of the organisation's
    stored secret with the API's key. votes: how many answers the judge gives; its score is their median. weight: among
    the judges of a job, whose scores are averaged by it.
    """

    model: str
    provider: str | None = None
    url: str | None = None
    key: str | None = None
    temperature: float = 0.0
    max_tokens: int = 1024
    votes: int = 1
    weight: float = 1.0


class Judging(msgspec.Struct, frozen=True, kw_only=True):
    """How rollouts are judged.

    rubric: None: the task app's own, from its `/task_info`. event, outcome: which tracks are scored.
    ranking: the rollouts of a group are put in an order by one call, and the outcome score is the place in it, from 0
    (last) to 1 (first); otherwise, and in evaluations, each rollout is scored for itself.
    max_concurrency: concurrent calls of a judge, over the cluster. requests_per_second: None: no limit.
    timeout_s: of one call. max_attempts: calls for one answer that can be read. max_calls, max_cost: of the whole job;
    None: no limit. max_outage_s: how long judges may be away until the job ends.
    """

    judges: list[JudgeModel]
    rubric: Rubric | None = None
    event: bool = False
    outcome: bool = True
    ranking: bool = False
    max_concurrency: int = 8
    requests_per_second: float | None = None
    timeout_s: float = 60.0
    max_attempts: int = 3
    max_calls: int | None = None
    max_cost: float | None = None
    max_outage_s: float = 3600.0

"""The question `ask.judge`, and its answer: the scores of one rollout, or of a group that is ranked."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.errors import Problem
from synth.events import BlobRef
from synth.judging.settings import Judging, Rubric


class RolloutToJudge(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that is over. transcript: a whole `Transcript` (`synth.transcripts.transcript`) as JSON.

    prompts: what the graders of its job ask models, a list of `GraderPrompt` as JSON: then these are asked in place of
    the rubric, and the review of the outcome has a criterion for each, by its key; its `total` is of no meaning.
    """

    rollout_id: str
    transcript: BlobRef | None = None
    prompts: BlobRef | None = None


class JudgeRollouts(msgspec.Struct, frozen=True, kw_only=True):
    """What do the judges say of these rollouts? One rollout, or with `judging.ranking` all of a group that count.

    Without any rollout: could they be asked at all? Then no model is asked.

    job_id: whose limits, budget and log lines they are; "" for a question of the API itself. rubric: the one that is
    applied, whatever `judging` has.
    The same question asked again is answered from the cache, or joins the one that is under way.
    """

    org: str
    job_id: str
    judging: Judging
    rubric: Rubric
    rollouts: list[RolloutToJudge]


class CriterionScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one criterion, over all judges and votes. reason: of one of them."""

    score: float
    reason: str = ""
    weight: float = 1.0
    description: str = ""


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What the judges say of one event, or of the whole episode. total: of its criteria, as the rubric aggregates."""

    criteria: dict[str, CriterionScore] = {}
    total: float = 0.0
    summary: str = ""


class RolloutReview(msgspec.Struct, frozen=True, kw_only=True):
    """The reviews of one rollout. events: one for each call of the model, in their order; [] where none were asked for.

    outcome: None where none was asked for.
    """

    rollout_id: str
    events: list[Review] = []
    outcome: Review | None = None


class JudgeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer cost. calls: of the judges, failed ones counted; 0 where all of it was in the cache.

    cost: in the currency of the prices in `SYNTH_JUDGE_PROVIDERS`, 0 without any. unreadable: answers of judges that
    were asked for again, since they were no scores.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unreadable: int = 0


class JudgeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there are no scores, which never means a score of 0.

    kind: "away": the judge cannot be reached, is overloaded or limits us, so ask again after `retry_after_s` seconds.
    "unreadable": in `max_attempts` calls it gave no scores that can be used; the rollout goes without. "refused": it
    never will (a wrong key, an unknown model, a prompt that does not fit); the job cannot go on. "working": no failure
    of anybody, the answer only takes longer than this one question may; ask again, at once.
    limited: it is away because it answered 429.
    """

    kind: Literal["away", "unreadable", "refused", "working"]
    problem: Problem
    retry_after_s: float = 5.0
    limited: bool = False


class JudgeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reviews, one for each rollout of the question in its order, or why there are none. usage: in either case.

    progress: of a failure "working": votes that the replica which says so has so far; 0 while another one is at it.
    """

    reviews: list[RolloutReview] = []
    failure: JudgeFailure | None = None
    usage: JudgeUsage = JudgeUsage()
    progress: int = 0

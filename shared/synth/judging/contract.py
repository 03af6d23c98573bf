"""The question `ask.judge`, and its answer: the scores of one rollout, or of a group that is ranked."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.errors import Problem
from synth.events import BlobRef
from synth.judging.settings import Judging, Rubric


class RolloutToJudge(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that is over. transcript: a whole `Transcript` (`synth.transcripts.transcript`) as JSON.

    prompts: the prompts of the job's graders for models, a list of `GraderPrompt` as JSON. They replace the rubric: the
    review of the outcome has a criterion for each, by its key; its `total` has no meaning.
    """

    rollout_id: str
    transcript: BlobRef | None = None
    prompts: BlobRef | None = None


class JudgeRollouts(msgspec.Struct, frozen=True, kw_only=True):
    """A request to judge these rollouts: one, or with `judging.ranking` all of a group that count.

    Without any rollout it only checks whether the judges are available, and no model is called.

    job_id: the job whose limits, budget and log lines apply; "" for a request of the API itself. rubric: the one to
    apply, instead of that in `judging`. A repeated request is answered from the cache, or joins the one that is under
    way.
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
    """The judges' scores of one event, or of the whole episode. total: of its criteria, as the rubric aggregates."""

    criteria: dict[str, CriterionScore] = {}
    total: float = 0.0
    summary: str = ""


class RolloutReview(msgspec.Struct, frozen=True, kw_only=True):
    """The reviews of one rollout. events: one for each call of the model, in order; [] if events are not judged.

    outcome: None if it is not judged.
    """

    rollout_id: str
    events: list[Review] = []
    outcome: Review | None = None


class JudgeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an answer. calls: of the judges, failed ones included; 0 if the cache had all of it.

    cost: in the currency of the prices in `SYNTH_JUDGE_PROVIDERS`, 0 without any. unreadable: answers of judges that
    were requested again, since they were no scores.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unreadable: int = 0


class JudgeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there are no scores, which never means a score of 0.

    kind: "away": the judge cannot be reached, is overloaded or limits us, so repeat the request after `retry_after_s`
    seconds. "unreadable": in `max_attempts` calls it gave no scores that can be used; the rollout goes without.
    "refused": it never will (a wrong key, an unknown model, a prompt that does not fit); the job cannot continue.
    "working": no failure, but the answer takes longer than one request may; repeat it at once.
    limited: it is away because it answered 429.
    """

    kind: Literal["away", "unreadable", "refused", "working"]
    problem: Problem
    retry_after_s: float = 5.0
    limited: bool = False


class JudgeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reviews, one for each requested rollout in order, or why there are none. usage: in either case.

    progress: of a failure "working": the votes so far of the replica that answers; 0 while another replica has the
    request.
    """

    reviews: list[RolloutReview] = []
    failure: JudgeFailure | None = None
    usage: JudgeUsage = JudgeUsage()
    progress: int = 0

"""Graders that use models: the prompts of a rollout for the judge service, and the score from its answers.

The prompts, and the scores that are known without them, are in the log with the rollout. So a collector that takes over
sends the same prompts, and runs no code twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from synth.errors import Problem
from synth.graders.grade import GraderFailed, total_of
from synth.graders.schema import Grader, parts_of
from synth.judging.contract import CriterionScore, Review, RolloutReview, RolloutToJudge
from synth.judging.grading import GraderPrompt
from synth.judging.settings import Judging
from synth.rollouts.collection.types import CollectionBlocked, CollectRequest, DurableRollout, EnvironmentBroken
from synth.rollouts.event_log import RolloutLog


@dataclass(frozen=True)
class ModelGraders:
    """The grader of one job, some of whose parts use models."""

    grader: Grader
    event_log: RolloutLog

    async def to_judge(self, request: CollectRequest, durable: DurableRollout) -> RolloutToJudge:
        """Return the rollout with its prompts, as the judge service takes it."""
        rollout_id, requested = durable.rollout.rollout_id, _asked(durable)
        if not requested:
            return RolloutToJudge(rollout_id=rollout_id)
        ref = await self.event_log.put_prompts(request, durable, msgspec.json.encode(requested))
        return RolloutToJudge(rollout_id=rollout_id, prompts=ref)

    def calls(self, durable: DurableRollout, judging: Judging) -> int:
        """Return the number of calls that the models of a rollout's graders take."""
        votes = {judge.model: judge.votes for judge in judging.judges}
        return sum(votes[prompt.model] for prompt in _asked(durable))

    def review(self, durable: DurableRollout, review: RolloutReview | None) -> RolloutReview:
        """Return the review with the grader's score as the outcome's total. review: None if no model was called.

        Raises `CollectionBlocked` if the formula has no value: the grader is at fault, as one without models would be.
        """
        told = _told(durable)
        rollout_id = durable.rollout.rollout_id
        if told is None:
            # The policy failed, and there is nothing to grade: the reward is the one that the job sets for a failure.
            return RolloutReview(rollout_id=rollout_id, outcome=Review(total=sum(durable.sources.environment)))
        judged = review.outcome.criteria if review is not None and review.outcome is not None else {}
        known: dict[str, float] = told["parts"] or dict.fromkeys(told["lacking"], 0.0)
        scores = known | {key: criterion.score for key, criterion in judged.items()}
        try:
            total = total_of(self.grader, scores)
        except GraderFailed as failed:
            what = f"row {durable.rollout.seed}: {failed}"
            problem = Problem(what=what, expected="a score", fix="mend the grader, or the row", where="grader")
            raise CollectionBlocked(EnvironmentBroken(problem, "grader_failed")) from failed
        criteria = {
            key: judged.get(key, CriterionScore(score=scores[key], reason=told["lacking"].get(key, "")))
            for key in parts_of(self.grader)
        }
        return RolloutReview(rollout_id=rollout_id, outcome=Review(criteria=criteria, total=total))


def _told(durable: DurableRollout) -> dict[str, Any] | None:
    """Return the grader's details of a rollout; None if there was nothing to grade."""
    return durable.info.get("details", {}).get("grader")


def _asked(durable: DurableRollout) -> list[GraderPrompt]:
    told = _told(durable) or {}
    return msgspec.convert(told.get("asked", []), list[GraderPrompt])

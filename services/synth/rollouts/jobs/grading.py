"""Graders that ask models: what the judge service is asked of a rollout, and the score that its answers make.

What was asked, and the scores that are known without it, are in the log with the rollout, so that a collector that
takes over asks the same, and runs no code twice.
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
    """The grader of one job, some of whose parts ask models."""

    grader: Grader
    event_log: RolloutLog

    async def to_judge(self, request: CollectRequest, durable: DurableRollout) -> RolloutToJudge:
        """What the judge service is asked of a rollout."""
        rollout_id, asked = durable.rollout.rollout_id, _asked(durable)
        if not asked:
            return RolloutToJudge(rollout_id=rollout_id)
        ref = await self.event_log.put_prompts(request, durable, msgspec.json.encode(asked))
        return RolloutToJudge(rollout_id=rollout_id, prompts=ref)

    def calls(self, durable: DurableRollout, judging: Judging) -> int:
        """The calls that the models of a rollout's graders take."""
        votes = {judge.model: judge.votes for judge in judging.judges}
        return sum(votes[prompt.model] for prompt in _asked(durable))

    def review(self, durable: DurableRollout, review: RolloutReview | None) -> RolloutReview:
        """The review, with what the grader makes of it as the outcome's total. review: None where none was asked for.

        Raises `CollectionBlocked` where the formula has no value: the grader is at fault, as where it asks no model.
        """
        told = _told(durable)
        rollout_id = durable.rollout.rollout_id
        if told is None:
            # The policy failed, and there is nothing to grade: it has earned what the job pays for that.
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
    """What was said of a rollout when it was graded; None where there was nothing to grade."""
    return durable.info.get("details", {}).get("grader")


def _asked(durable: DurableRollout) -> list[GraderPrompt]:
    told = _told(durable) or {}
    return msgspec.convert(told.get("asked", []), list[GraderPrompt])

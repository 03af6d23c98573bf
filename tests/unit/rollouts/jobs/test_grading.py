"""Graders that ask models: the formula over the judges' scores is the reward, and a score is never made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from synth.errors import Problem
from synth.events import BlobRef
from synth.graders.grade import grade
from synth.graders.schema import parse_grader
from synth.graders.template import Sample
from synth.judging.contract import CriterionScore, JudgeAnswer, JudgeRollouts, JudgeUsage, Review, RolloutReview
from synth.judging.settings import JudgeModel, Judging, Rubric
from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.judged import add_review, with_sources
from synth.rollouts.collection.types import AbandonedRollout, CollectionBlocked, CollectRequest, DurableRollout
from synth.rollouts.event_log import RolloutLog
from synth.rollouts.jobs.grading import ModelGraders
from synth.rollouts.jobs.judging import RolloutJudge
from synth.trajectories import RewardSources
from tests.unit.graders.test_model_graders import MULTI
from tests.unit.rollouts.jobs.test_judging import Log, failure

REQUEST = CollectRequest(iteration=1, mode="train", seeds=[0], group_size=4, oldest_version=0)
REWARDS = RewardSettings(scores="grader")


class GraderLog(Log):
    """What is made durable, in the place of the log, with what the judge service would read."""

    def __init__(self) -> None:
        super().__init__()
        self.reviews: list[RolloutReview | None] = []
        self.prompts: list[Any] = []

    async def judged(
        self,
        request: CollectRequest,
        durable: DurableRollout,
        review: RolloutReview | None,
        usage: JudgeUsage,
        *,
        problem: Problem | None = None,
    ) -> ScoredRollout | None:
        await super().judged(request, durable, review, usage, problem=problem)
        self.reviews.append(review)
        if review is None:
            return None
        return with_sources(durable.rollout, add_review(durable.sources, review, REWARDS), REWARDS)

    async def put_prompts(self, request: CollectRequest, durable: DurableRollout, body: bytes) -> BlobRef:
        self.prompts.append(msgspec.json.decode(body))
        return BlobRef(uri="blob://prompts", size=len(body), sha256="0")


def played(said: str | None) -> DurableRollout:
    """A rollout in the log in which the model said this; None: it failed, and earned -1."""
    info: dict[str, Any] = {}
    if said is not None:
        found = grade(parse_grader(MULTI), {"answer": 4}, Sample(said, []), max_characters=100)
        told = {"parts": found.parts, "lacking": found.lacking, "asked": msgspec.to_builtins(found.asked)}
        info = {"details": {"grader": told}}
    reward = 0.0 if said is not None else -1.0
    rollout = ScoredRollout("j_t1_0", 0, 0, reward, [reward], [], 0.1, 1)
    return DurableRollout(0, rollout, RewardSources([reward]), None, info)


def judge_of(
    log: GraderLog, answer: Callable[[JudgeRollouts], JudgeAnswer], formula: str, **settings: Any
) -> RolloutJudge:
    async def ask(question: JudgeRollouts) -> JudgeAnswer:
        await asyncio.sleep(0)
        return answer(question)

    judging = Judging(judges=[JudgeModel(model="a-judge"), JudgeModel(model="b-judge")], outcome=False, **settings)
    graders = ModelGraders(parse_grader({**MULTI, "calculate_output": formula}), cast(RolloutLog, log))
    return RolloutJudge("org", "j", judging, Rubric(), cast(RolloutLog, log), ask, lambda stage: None, graders)


def said_so(question: JudgeRollouts) -> JudgeAnswer:
    criteria = {"s": CriterionScore(score=3.0, reason="so"), "l": CriterionScore(score=1.0)}
    review = RolloutReview(rollout_id=question.rollouts[0].rollout_id, outcome=Review(criteria=criteria))
    return JudgeAnswer(reviews=[review], usage=JudgeUsage(calls=2, cost=0.5))


async def test_the_formula_over_all_scores_is_the_reward():
    log = GraderLog()
    [scored] = await judge_of(log, said_so, "s + l + 10 * e").judge(REQUEST, [played('{"x": 1}')])
    assert isinstance(scored, ScoredRollout)
    assert (scored.reward, scored.turn_rewards, scored.sources) == (4.0, [4.0], {"env": 4.0})
    assert [prompt["key"] for prompt in log.prompts[0]] == ["s", "l"]
    assert log.judge_usage.calls == 2
    review = log.reviews[0]
    assert review is not None
    assert review.outcome is not None
    assert list(review.outcome.criteria) == ["s", "l", "e"]


async def test_a_policy_that_failed_earns_what_the_job_pays_for_it_and_nobody_is_asked():
    log = GraderLog()
    [scored] = await judge_of(log, lambda q: failure("refused"), "s + l").judge(REQUEST, [played(None)])
    assert isinstance(scored, ScoredRollout)
    assert (scored.reward, log.judge_usage.calls) == (-1.0, 0)


async def test_a_formula_without_a_value_ends_the_job():
    with pytest.raises(CollectionBlocked) as blocked:
        await judge_of(GraderLog(), said_so, "1 / (s - 3)").judge(REQUEST, [played('{"x": 1}')])
    assert blocked.value.broken.code == "grader_failed"
    assert "row 0" in blocked.value.broken.problem.what


async def test_an_answer_that_cannot_be_used_leaves_the_rollout_out():
    log = GraderLog()
    [left_out] = await judge_of(log, lambda q: failure("unreadable"), "s").judge(REQUEST, [played("4")])
    assert isinstance(left_out, AbandonedRollout)
    assert (left_out.unjudged, log.reviews) == (True, [None])


async def test_the_budget_counts_the_calls_of_the_models_that_are_asked():
    log = GraderLog()
    judge = judge_of(log, said_so, "s", max_calls=2)
    await judge.judge(REQUEST, [played('{"x": 1}')])
    with pytest.raises(CollectionBlocked, match="max_calls = 2"):
        await judge.judge(REQUEST, [played('{"x": 1}')])

"""Asking for scores: judges that are away are waited for, budgets hold, and what cannot be scored is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from synth.errors import Problem, Transient
from synth.events import BlobRef
from synth.judging.contract import JudgeAnswer, JudgeFailure, JudgeRollouts, JudgeUsage, Review, RolloutReview
from synth.judging.settings import JudgeModel, Judging, Rubric
from synth.methods.rewards import RewardSettings, RewardWeights
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.judged import add_review, with_sources
from synth.rollouts.collection.types import AbandonedRollout, CollectionBlocked, CollectRequest, DurableRollout
from synth.rollouts.event_log import RolloutLog
from synth.rollouts.jobs.judging import RolloutJudge
from synth.trajectories import RewardSources

REQUEST = CollectRequest(iteration=1, mode="train", seeds=[0], group_size=4, oldest_version=0)
REWARDS = RewardSettings(weights=RewardWeights(env=0.5, outcome=1.0), scores="judges")


def durable(index: int, *, turns: int = 1) -> DurableRollout:
    """A rollout in the log that earned 1 of its environment."""
    sources = RewardSources([0.0] * (turns - 1) + [1.0])
    rollout = ScoredRollout(f"j_t1_{index}", 0, 0, 1.0, sources.environment, [], 0.1, 1)
    return DurableRollout(index, rollout, sources, BlobRef(uri=f"blob://{index}", size=1, sha256="0"))


class Log:
    """What is made durable, in the place of the log."""

    def __init__(self) -> None:
        self.judge_usage = JudgeUsage()
        self.problems: list[Problem | None] = []

    async def judged(
        self,
        request: CollectRequest,
        durable: DurableRollout,
        review: RolloutReview | None,
        usage: JudgeUsage,
        *,
        problem: Problem | None = None,
    ) -> ScoredRollout | None:
        self.problems.append(problem)
        self.judge_usage = JudgeUsage(
            calls=self.judge_usage.calls + usage.calls, cost=self.judge_usage.cost + usage.cost
        )
        return (
            None
            if review is None
            else with_sources(durable.rollout, add_review(durable.sources, review, REWARDS), REWARDS)
        )


def scores(question: JudgeRollouts, *, total: float = 0.25, events: int = 0, cost: float = 0.0) -> JudgeAnswer:
    reviews = [
        RolloutReview(rollout_id=r.rollout_id, events=[Review(total=1.0)] * events, outcome=Review(total=total))
        for r in question.rollouts
    ]
    return JudgeAnswer(reviews=reviews, usage=JudgeUsage(calls=len(reviews), cost=cost))


def failure(kind: str, **fields: float) -> JudgeAnswer:
    found = JudgeFailure(kind=kind, problem=Problem(what=f"it is {kind}"), **fields)  # type: ignore[arg-type]
    return JudgeAnswer(failure=found, usage=JudgeUsage(calls=1))


def judge_of(log: Log, answer: Callable[[JudgeRollouts], JudgeAnswer], **settings: object) -> RolloutJudge:
    async def ask(question: JudgeRollouts) -> JudgeAnswer:
        await asyncio.sleep(0)
        return answer(question)

    judging = Judging(judges=[JudgeModel(model="m")], **settings)  # type: ignore[arg-type]
    return RolloutJudge("org", "j", judging, Rubric(), cast(RolloutLog, log), ask, lambda stage: None)


async def test_scores_are_blended_with_what_the_environment_paid():
    log = Log()
    [judged] = await judge_of(log, scores).judge(REQUEST, [durable(0, turns=2)])
    assert isinstance(judged, ScoredRollout)
    assert (judged.reward, judged.turn_rewards, judged.sources) == (0.75, [0.0, 0.75], {"env": 1.0, "outcome": 0.25})


async def test_a_judge_that_is_away_is_asked_again_and_what_that_cost_counts():
    log, asked = Log(), 0

    def answer(question: JudgeRollouts) -> JudgeAnswer:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Transient("nobody is there", delay=0)
        return failure("away", retry_after_s=0.0) if asked < 4 else scores(question)

    [judged] = await judge_of(log, answer).judge(REQUEST, [durable(0)])
    assert isinstance(judged, ScoredRollout)
    assert (asked, log.judge_usage.calls, log.problems) == (4, 3, [None])


async def test_a_judge_that_stays_away_ends_the_job_and_scores_nothing():
    log = Log()
    with pytest.raises(CollectionBlocked) as blocked:
        await judge_of(log, lambda q: failure("away", retry_after_s=0.0), max_outage_s=0.0).judge(REQUEST, [durable(0)])
    assert (blocked.value.broken.code, log.problems) == ("judge_failed", [])
    assert "it is away" in blocked.value.broken.problem.what


async def test_what_cannot_be_read_leaves_the_rollout_out_and_a_refusal_ends_the_job():
    log = Log()
    [left_out] = await judge_of(log, lambda q: failure("unreadable")).judge(REQUEST, [durable(0)])
    assert isinstance(left_out, AbandonedRollout)
    assert left_out.unjudged
    assert [p.what for p in log.problems if p] == ["it is unreadable"]
    with pytest.raises(CollectionBlocked):
        await judge_of(log, lambda q: failure("refused")).judge(REQUEST, [durable(0)])


async def test_reviews_of_other_turns_than_there_were_are_no_scores():
    log = Log()
    judge = judge_of(log, lambda q: scores(q, events=3), event=True)
    [left_out] = await judge.judge(REQUEST, [durable(0, turns=2)])
    assert isinstance(left_out, AbandonedRollout)
    assert "3 events of 2 turns" in left_out.problem.what


async def test_no_question_is_begun_that_the_budget_of_calls_could_not_pay():
    log = Log()
    judge = judge_of(log, scores, max_calls=3, max_concurrency=8)
    ends = await asyncio.gather(*(judge.judge(REQUEST, [durable(i)]) for i in range(5)), return_exceptions=True)
    assert [isinstance(end, CollectionBlocked) for end in ends] == [False, False, False, True, True]
    assert log.judge_usage.calls == 3
    costly = judge_of(log, lambda q: scores(q, cost=2.0), max_cost=2.0)
    await costly.judge(REQUEST, [durable(0)])
    with pytest.raises(CollectionBlocked, match="max_cost = 2"):
        await costly.judge(REQUEST, [durable(1)])


async def test_a_ranked_groups_calls_are_counted_once():
    log = Log()
    judged = await judge_of(log, lambda q: scores(q), ranking=True).judge(REQUEST, [durable(0), durable(1)])
    assert len(judged) == 2
    assert log.judge_usage.calls == 2, "what the judges said that the one question took"

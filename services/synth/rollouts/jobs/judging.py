"""The judging of a job's rollouts: calls the judge service, waits for unavailable judges, and never invents a score.

Invariants. A rollout is in the log before it is judged, so that a collector that takes over judges it and does not play
it again. A judge that is unavailable pauses the judging. If a judge's answers cannot be read, the rollout's group is
lost and counted; if a judge refuses, the job ends with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from synth.bus.connection import Connection
from synth.bus.rpc import ANSWER_WITHIN_S, JUDGE, ask
from synth.errors import Problem, Transient
from synth.judging.contract import JudgeAnswer, JudgeRollouts, JudgeUsage, RolloutReview, RolloutToJudge
from synth.judging.settings import Judging, Rubric
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.types import (
    AbandonedRollout,
    CollectionBlocked,
    CollectRequest,
    DurableRollout,
    EnvironmentBroken,
)
from synth.rollouts.event_log import RolloutLog
from synth.rollouts.jobs.grading import ModelGraders
from synth.rollouts.rewards.scoring import LARGEST_REWARD
from synth.runtime import logs

log = logs.get("judging")

Ask = Callable[[JudgeRollouts], Awaitable[JudgeAnswer]]
"""Calls the judge service once. Raises `Transient` if no answer arrives."""
#: A judge that is unavailable is called again, and logged as unavailable, after at most this many seconds.
_LONGEST_PAUSE_S = 30.0


@dataclass
class RolloutJudge:
    """The judging of one job's rollouts. progress: called while rollouts wait for their judges."""

    org: str
    job_id: str
    judging: Judging
    rubric: Rubric
    event_log: RolloutLog
    ask: Ask
    progress: Callable[[str], None]
    graders: ModelGraders | None = None
    """The graders whose prompts go to the judges; None if a rubric is applied."""
    _slots: asyncio.Semaphore = field(init=False)
    _changed: asyncio.Condition = field(init=False)
    _planned: int = field(init=False)
    """The number of calls that the questions under way may take."""

    def __post_init__(self) -> None:
        # Questions beyond the judges' concurrency would only wait in the judge service.
        self._slots = asyncio.Semaphore(self.judging.max_concurrency)
        self._changed = asyncio.Condition()
        self._planned = 0

    @property
    def by_group(self) -> bool:
        return self.judging.ranking

    async def judge(
        self, request: CollectRequest, rollouts: list[DurableRollout]
    ) -> list[ScoredRollout | AbandonedRollout]:
        """Judge rollouts, see `Judge`."""
        alone = not request.compares
        question = JudgeRollouts(
            org=self.org,
            job_id=self.job_id,
            judging=msgspec.structs.replace(self.judging, ranking=False) if alone else self.judging,
            rubric=self.rubric,
            rollouts=[await self._to_judge(request, durable) for durable in rollouts],
        )
        planned = self._planned_calls(rollouts)
        if self.graders is not None and not planned:
            # No model is needed: the samples lack the fields that the graders read, or the policy failed.
            reviews = [self.graders.review(durable, None) for durable in rollouts]
            return await self._log(request, rollouts, JudgeAnswer(reviews=reviews))
        async with self._slots, self._reserved(planned):
            answer = await self._ask_until_answered(question)
            if self.graders is not None and answer.failure is None:
                result = zip(rollouts, answer.reviews, strict=True)
                reviews = [self.graders.review(durable, review) for durable, review in result]
                answer = msgspec.structs.replace(answer, reviews=reviews)
            return await self._log(request, rollouts, answer)

    async def _to_judge(self, request: CollectRequest, durable: DurableRollout) -> RolloutToJudge:
        if self.graders is not None:
            return await self.graders.to_judge(request, durable)
        assert durable.transcript is not None  # a judged job keeps the transcript of every rollout
        return RolloutToJudge(rollout_id=durable.rollout.rollout_id, transcript=durable.transcript)

    async def _log(
        self, request: CollectRequest, rollouts: list[DurableRollout], answer: JudgeAnswer
    ) -> list[ScoredRollout | AbandonedRollout]:
        problem = answer.failure.problem if answer.failure else _mismatch(rollouts, answer.reviews)
        judged: list[ScoredRollout | AbandonedRollout] = []
        for n, durable in enumerate(rollouts):
            # The calls of a ranked group are recorded for its first rollout, so that none is counted twice.
            usage = answer.usage if n == 0 else JudgeUsage()
            review = None if problem else answer.reviews[n]
            rollout = await self.event_log.judged(request, durable, review, usage, problem=problem)
            if rollout is None:
                assert problem is not None
                judged.append(AbandonedRollout(problem, durable.rollout.tries, unjudged=True))
            else:
                judged.append(rollout)
        return judged

    async def _ask_until_answered(self, question: JudgeRollouts) -> JudgeAnswer:
        """Return the judges' answer, reviews or the failure that they cannot be read, with the usage of all calls."""
        spent = JudgeUsage()
        began = time.monotonic()
        for pauses in range(1 << 62):
            self._check_spent(spent)
            self.progress("judge")
            try:
                answer = await self.ask(question)
            except Transient as error:
                problem, pause = Problem(what=str(error)), min(_LONGEST_PAUSE_S, 0.25 * 2 ** min(pauses, 8))
            else:
                spent = _add(spent, answer.usage)
                if answer.failure is None or answer.failure.kind == "unreadable":
                    return msgspec.structs.replace(answer, usage=spent)
                if answer.failure.kind == "refused":
                    raise _blocked(answer.failure.problem)
                if answer.failure.kind == "working":
                    # The judges are available. Each of their calls has a deadline, so the waiting ends.
                    began = time.monotonic()
                    await asyncio.sleep(answer.failure.retry_after_s)
                    continue
                problem, pause = answer.failure.problem, min(_LONGEST_PAUSE_S, answer.failure.retry_after_s)
            if (waited := time.monotonic() - began) > self.judging.max_outage_s:
                raise _blocked(
                    Problem(
                        what=f"no judge has answered for {waited:.0f} s: {problem.what}",
                        expected="an answer within [judge].max_outage_s",
                        fix="see that the judge service runs and that its provider answers, then submit again",
                        where="[judge]",
                    )
                )
            rollout = question.rollouts[0].rollout_id
            log.warning("judges are away, rollouts wait", rollout=rollout, reason=problem.what, waited_s=round(waited))
            await asyncio.sleep(pause)
        raise AssertionError("counting never ends")

    def _planned_calls(self, rollouts: list[DurableRollout]) -> int:
        """Return the calls that a question takes if every answer can be read at the first try."""
        if self.graders is not None:
            return sum(self.graders.calls(durable, self.judging) for durable in rollouts)
        events = sum(len(durable.sources.environment) for durable in rollouts) if self.judging.event else 0
        outcomes = self.judging.outcome * (1 if self.judging.ranking else len(rollouts))
        return (events + outcomes) * sum(judge.votes for judge in self.judging.judges)

    @asynccontextmanager
    async def _reserved(self, calls: int) -> AsyncIterator[None]:
        """Reserve calls of the job's budget, and wait while questions under way might leave room for them.

        Raises `CollectionBlocked` if they do not fit. Answers that cannot be read take more calls than planned.
        """
        most = self.judging.max_calls
        async with self._changed:
            while most is not None and self.event_log.judge_usage.calls + self._planned + calls > most:
                if not self._planned:
                    raise _budget_spent("max_calls", self.event_log.judge_usage.calls, most)
                await self._changed.wait()
            self._planned += calls
        try:
            yield
        finally:
            async with self._changed:
                self._planned -= calls
                self._changed.notify_all()

    def _check_spent(self, spent: JudgeUsage) -> None:
        """Raise `CollectionBlocked` if the budget of the job's judges, in cost or calls, is spent.

        spent: the usage so far of a question that is sent again.
        """
        used, most = self.event_log.judge_usage.cost + spent.cost, self.judging.max_cost
        if most is not None and used >= most:
            raise _budget_spent("max_cost", used, most)
        calls, limit = self.event_log.judge_usage.calls + spent.calls, self.judging.max_calls
        if limit is not None and spent.calls and calls >= limit:
            raise _budget_spent("max_calls", calls, limit)


def _budget_spent(name: str, used: float, most: float) -> CollectionBlocked:
    return _blocked(
        Problem(
            what=f"the judges' budget is spent: {used:g} of [judge].{name} = {most:g}",
            expected="a budget for all rollouts of the job",
            fix=f"go on from the last checkpoint with a higher {name}",
            where=f"[judge].{name}",
        )
    )


def _blocked(problem: Problem) -> CollectionBlocked:
    return CollectionBlocked(EnvironmentBroken(problem, "judge_failed"))


def ask_judge(bus: Connection) -> Ask:
    """Return a function that sends a question to any replica of the judge service.

    Judging may take longer than the limit of one answer: the same question, sent again, joins the one under way.
    """

    async def question(judge: JudgeRollouts) -> JudgeAnswer:
        return await ask(bus, JUDGE, judge, JudgeAnswer, within=ANSWER_WITHIN_S)

    return question


def _mismatch(rollouts: list[DurableRollout], reviews: list[RolloutReview]) -> Problem | None:
    for durable, review in zip(rollouts, reviews, strict=True):
        turns = len(durable.sources.environment)
        if review.events and len(review.events) != turns:
            what = f"the judges reviewed {len(review.events)} events of {turns} turns"
            return Problem(what=what, expected="a review of each turn")
        totals = [*(event.total for event in review.events), *([review.outcome.total] if review.outcome else [])]
        if wrong := [total for total in totals if not abs(total) <= LARGEST_REWARD]:
            return Problem(what=f"the judges' scores add up to {wrong[0]:g}", expected=f"at most {LARGEST_REWARD:g}")
    return None


def _add(a: JudgeUsage, b: JudgeUsage) -> JudgeUsage:
    return JudgeUsage(**{name: getattr(a, name) + getattr(b, name) for name in JudgeUsage.__struct_fields__})

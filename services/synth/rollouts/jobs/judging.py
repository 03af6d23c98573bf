"""Has the rollouts of a job judged: asks the judge service, waits while judges are away, and never invents a score.

Invariants. A rollout is in the log before it is judged, so that a collector that takes over judges it and does not play
it again. A judge that is away pauses the judging. One whose answers cannot be read costs the group of that rollout,
counted; one that refuses ends the job with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from synth.bus.connection import Connection
from synth.bus.rpc import ANSWER_WITHIN_S, JUDGE, ask
from synth.errors import Problem, Transient
from synth.judging.contract import JudgeAnswer, JudgeRollouts, JudgeUsage, RolloutReview, RolloutToJudge
from synth.judging.settings import Judging, Rubric
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.types import AbandonedRollout, CollectionBlocked, CollectRequest, DurableRollout
from synth.rollouts.event_log import RolloutLog
from synth.runtime import logs

log = logs.get("judging")

Ask = Callable[[JudgeRollouts], Awaitable[JudgeAnswer]]
"""Asks the judge service once. Raises `Transient` where no answer comes."""
#: A judge that is away is looked at again after this many seconds at most, and is said to be away as often.
_LONGEST_PAUSE_S = 30.0


@dataclass
class RolloutJudge:
    """The judging of one job's rollouts. progress: called while rollouts wait for their judges, which is no hanging."""

    org: str
    job_id: str
    judging: Judging
    rubric: Rubric
    event_log: RolloutLog
    ask: Ask
    progress: Callable[[str], None]
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        # More questions than the judges may be asked at once would only wait in the judge service.
        self._slots = asyncio.Semaphore(self.judging.max_concurrency)

    @property
    def by_group(self) -> bool:
        return self.judging.ranking

    async def judge(
        self, request: CollectRequest, rollouts: list[DurableRollout]
    ) -> list[ScoredRollout | AbandonedRollout]:
        """See `Judge`."""
        question = JudgeRollouts(
            org=self.org,
            job_id=self.job_id,
            judging=self.judging,
            rubric=self.rubric,
            rollouts=[_to_judge(durable) for durable in rollouts],
        )
        async with self._slots:
            answer = await self._ask_until_answered(question)
        problem = answer.failure.problem if answer.failure else _mismatch(rollouts, answer.reviews)
        judged: list[ScoredRollout | AbandonedRollout] = []
        for n, durable in enumerate(rollouts):
            # The calls of a ranked group are those of its first rollout, so that none is counted twice.
            usage = answer.usage if n == 0 else JudgeUsage()
            review = None if problem else answer.reviews[n]
            rollout = await self.event_log.judged(request, durable, review, usage, problem=problem)
            judged.append(rollout or AbandonedRollout(problem or Problem(what="no review"), durable.rollout.tries))
        return judged

    async def _ask_until_answered(self, question: JudgeRollouts) -> JudgeAnswer:
        """The answer of judges that are there: reviews, or that theirs cannot be read. With what all calls cost."""
        spent = JudgeUsage()
        began = time.monotonic()
        for pauses in range(1 << 62):
            self._check_budget(spent)
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
                    raise CollectionBlocked(answer.failure.problem)
                problem, pause = answer.failure.problem, min(_LONGEST_PAUSE_S, answer.failure.retry_after_s)
            if (waited := time.monotonic() - began) > self.judging.max_outage_s:
                raise CollectionBlocked(
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

    def _check_budget(self, spent: JudgeUsage) -> None:
        """Raises `CollectionBlocked` where the job may not ask its judges again."""
        done = _add(self.event_log.judge_usage, spent)
        for name, used, most in (
            ("max_calls", done.calls, self.judging.max_calls),
            ("max_cost", done.cost, self.judging.max_cost),
        ):
            if most is not None and used >= most:
                raise CollectionBlocked(
                    Problem(
                        what=f"the judges' budget is spent: {used:g} of [judge].{name} = {most:g}",
                        expected="a budget for all rollouts of the job",
                        fix=f"go on from the last checkpoint with a higher {name}",
                        where=f"[judge].{name}",
                    )
                )


def ask_judge(bus: Connection) -> Ask:
    """Asks whichever replica of the judge service takes the question.

    A judging may take longer than an answer may: the same question, asked again, joins the one that is under way.
    """

    async def question(judge: JudgeRollouts) -> JudgeAnswer:
        return await ask(bus, JUDGE, judge, JudgeAnswer, within=ANSWER_WITHIN_S)

    return question


def _to_judge(durable: DurableRollout) -> RolloutToJudge:
    assert durable.transcript is not None  # a judged job keeps the transcript of every rollout
    return RolloutToJudge(rollout_id=durable.rollout.rollout_id, transcript=durable.transcript)


def _mismatch(rollouts: list[DurableRollout], reviews: list[RolloutReview]) -> Problem | None:
    for durable, review in zip(rollouts, reviews, strict=True):
        turns = len(durable.sources.environment)
        if review.events and len(review.events) != turns:
            return Problem(
                what=f"the judges reviewed {len(review.events)} events of {turns} turns", expected="each turn"
            )
    return None


def _add(a: JudgeUsage, b: JudgeUsage) -> JudgeUsage:
    return JudgeUsage(**{name: getattr(a, name) + getattr(b, name) for name in JudgeUsage.__struct_fields__})

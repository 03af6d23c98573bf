"""Answers questions: work goes on when its asker has given up for now, and whoever asks again joins it.

Invariants. A question is worked at once, by one replica. What it cost is told once: to the last who asked, which
may be after a restart. Work that nobody asks for ends after a while, with its answers kept. Whoever asks is told,
before its time is over, that the work goes on. No organisation has more than its share of the rooms, and what waits for
that share takes no room.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from synth.errors import Transient
from synth.judge.cache import AnswerCache
from synth.judge.failures import JudgeTrouble, away, working
from synth.judge.judging import QuestionWorker
from synth.judge.leases import Leases
from synth.judge.metrics import WORKING
from synth.judge.rooms import Rooms
from synth.judge.usage import UsageCount
from synth.judging.contract import JudgeAnswer, JudgeRollouts, JudgeUsage
from synth.runtime import logs

log = logs.get("judge")

_LOOK_S = 2.0
_ABANDONED = "nobody has asked for it for a while"


@dataclass(eq=False)
class _Work:
    """A question that is worked at. waiting: who waits for it here; asked: how many ever did; asked_at: until when."""

    question: JudgeRollouts
    digest: str
    usage: UsageCount = field(default_factory=UsageCount)
    waiting: int = 0
    asked: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    task: asyncio.Task[JudgeAnswer] | None = None


class QuestionDesk:
    """Takes questions, and keeps the work that they make.

    org_share: of the rooms, what one organisation may have. answer_s: when whoever asks is told that the work goes on.
    """

    def __init__(
        self,
        worker: QuestionWorker,
        cache: AnswerCache,
        leases: Leases,
        *,
        max_questions: int,
        org_share: float,
        abandon_s: float,
        answer_s: float,
    ) -> None:
        self._worker = worker
        self._cache = cache
        self._leases = leases
        self._abandon_s = abandon_s
        self._answer_s = answer_s
        self._rooms = Rooms(max_questions, of_one=max(1, int(org_share * max_questions)))
        self._works: dict[str, _Work] = {}

    async def answer(self, question: JudgeRollouts) -> JudgeAnswer:
        """The answer, or that the work goes on, so that it is asked for again. Raises `Transient` at the stop."""
        digest = hashlib.sha256(msgspec.json.encode(question)).hexdigest()
        if not question.rollouts:
            # No model is asked, so that it needs no room: whether a job may begin does not wait for those that run.
            return await self._result(_Work(question, digest))
        until = time.monotonic() + self._answer_s
        if digest not in self._works:
            try:
                async with asyncio.timeout(self._answer_s):
                    await self._rooms.enter(question.org)
            except TimeoutError:
                return JudgeAnswer(failure=working(0))
            if digest in self._works:
                self._rooms.leave(question.org)
            else:
                self._begin(question, digest)
        work = self._works[digest]
        assert work.task is not None
        work.waiting += 1
        work.asked += 1
        nth = work.asked
        try:
            # Whoever gives up ends its own wait alone.
            await asyncio.wait([work.task], timeout=max(0.0, until - time.monotonic()))
        finally:
            work.waiting -= 1
            work.asked_at = time.monotonic()
        if not work.task.done():
            votes = work.usage.votes
            return JudgeAnswer(failure=working(votes), progress=votes)
        if work.task.cancelled():
            raise Transient("this judge is being stopped; another one has what was answered so far")
        answer = work.task.result()
        # Who asked before may have given up, and nobody would count the calls.
        return answer if nth == work.asked else msgspec.structs.replace(answer, usage=JudgeUsage())

    async def end_abandoned(self) -> None:
        """End the work that nobody asks for, for ever."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self._abandon_s))
            for work in list(self._works.values()):
                if work.waiting or time.monotonic() - work.asked_at < self._abandon_s:
                    continue
                try:
                    asked_at = await self._leases.asked_at(work.digest)
                except (NatsError, JetStreamError, TimeoutError) as error:
                    log.warning("whether work is still asked for is not known", error=repr(error))
                    continue
                if time.time() - asked_at < self._abandon_s:
                    continue
                if work.task is not None and not work.waiting:
                    log.info("work ended", job=work.question.job_id, reason=_ABANDONED)
                    work.task.cancel()

    async def close(self) -> None:
        """End all work; what it has cost is kept for whoever asks again."""
        tasks = [work.task for work in self._works.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, question: JudgeRollouts, digest: str) -> None:
        work = self._works[digest] = _Work(question, digest)
        work.task = asyncio.create_task(self._work(work))
        WORKING.inc()

        def ended(task: asyncio.Task[JudgeAnswer]) -> None:
            if not task.cancelled() and task.exception() is not None and not work.waiting:
                log.error("work failed with nobody to tell", job=question.job_id, error=repr(task.exception()))
            del self._works[digest]
            self._rooms.leave(question.org)
            WORKING.dec()

        work.task.add_done_callback(ended)

    async def _work(self, work: _Work) -> JudgeAnswer:
        org = work.question.org
        async with self._leases.hold(work.digest):
            earlier = await self._cache.find_unheard(org, work.digest)
            if earlier is not None:
                await self._cache.drop_unheard(org, work.digest)
                if earlier.failure is None:
                    return earlier
                work.usage.add(earlier.usage)
            try:
                answer = await self._result(work)
            except asyncio.CancelledError:
                if work.usage.calls:
                    failure = away(_ABANDONED, where="judge", retry_after_s=0).failure
                    await self._cache.put_unheard(
                        org, work.digest, JudgeAnswer(failure=failure, usage=work.usage.told())
                    )
                raise
            if not work.waiting:
                await self._cache.put_unheard(org, work.digest, answer)
                if work.waiting:
                    await self._cache.drop_unheard(org, work.digest)
            return answer

    async def _result(self, work: _Work) -> JudgeAnswer:
        try:
            reviews = await self._worker.run(work.question, work.usage)
        except JudgeTrouble as trouble:
            failure = trouble.failure
            log.info("no scores", job=work.question.job_id, kind=failure.kind, reason=failure.problem.text())
            return JudgeAnswer(failure=failure, usage=work.usage.told())
        return JudgeAnswer(reviews=reviews, usage=work.usage.told())

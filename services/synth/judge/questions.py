"""Answers questions: work continues after its caller has stopped waiting, and a repeated question joins it.

Invariants. One replica works on a question, once. The cost of a question is reported once: to the last request for it,
which may come after a restart. Work that is no longer requested ends after a while, and its answers are kept. A request
that is still running near its deadline gets the reply that the work continues. No organisation has more than its share
of the slots, and a question that waits for that share takes no slot.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field

import msgspec
from nats.errors import Error as NatsError

from synth.errors import Transient
from synth.fairness.slots import FairSlots, Slot
from synth.judge.cache import AnswerCache
from synth.judge.failures import JudgeTrouble, away, working
from synth.judge.judging import QuestionWorker
from synth.judge.leases import Leases
from synth.judge.metrics import WORKING
from synth.judge.usage import UsageCount
from synth.judging.contract import JudgeAnswer, JudgeRollouts, JudgeUsage
from synth.runtime import logs

log = logs.get("judge")

_LOOK_S = 2.0
_ABANDONED = "it was not requested for a while"


@dataclass(eq=False)
class _Work:
    """A question in work. waiting: its requests now; requests: all of them; requested_at: when one last waited."""

    question: JudgeRollouts
    digest: str
    usage: UsageCount = field(default_factory=UsageCount)
    waiting: int = 0
    requests: int = 0
    requested_at: float = field(default_factory=time.monotonic)
    task: asyncio.Task[JudgeAnswer] | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionDesk:
    """Takes questions, and keeps their work.

    slots: of the questions that this process works at or keeps waiting. abandon_s: for how long work goes on that is
    not requested. answer_s: the time after which a request gets the reply that the work continues.
    """

    worker: QuestionWorker
    cache: AnswerCache
    leases: Leases
    slots: FairSlots
    abandon_s: float
    answer_s: float
    _works: dict[str, _Work] = field(default_factory=dict[str, _Work])

    async def answer(self, question: JudgeRollouts) -> JudgeAnswer:
        """Return the answer, or that the work continues and has to be requested again. Raises `Transient` at stop."""
        digest = hashlib.sha256(msgspec.json.encode(question)).hexdigest()
        if not question.rollouts:
            # No model is called, so it needs no slot: the check of a new job does not wait for running jobs.
            return await self._result(_Work(question, digest))
        until = time.monotonic() + self.answer_s
        if digest not in self._works:
            try:
                async with asyncio.timeout(self.answer_s):
                    slot = await self.slots.acquire(question.org)
            except TimeoutError:
                return JudgeAnswer(failure=working(0))
            if digest in self._works:
                slot.release()
            else:
                self._begin(question, digest, slot)
        work = self._works[digest]
        assert work.task is not None
        work.waiting += 1
        work.requests += 1
        nth = work.requests
        try:
            # A caller that stops waiting ends only its own wait.
            await asyncio.wait([work.task], timeout=max(0.0, until - time.monotonic()))
        finally:
            work.waiting -= 1
            work.requested_at = time.monotonic()
        if not work.task.done():
            votes = work.usage.votes
            return JudgeAnswer(failure=working(votes), progress=votes)
        if work.task.cancelled():
            raise Transient("this judge is being stopped; another one has its answers so far")
        answer = work.task.result()
        # An earlier caller may have stopped waiting, and then nobody would count the calls.
        return answer if nth == work.requests else msgspec.structs.replace(answer, usage=JudgeUsage())

    async def end_abandoned(self) -> None:
        """End the work that is no longer requested, for ever."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self.abandon_s))
            for work in list(self._works.values()):
                if work.waiting or time.monotonic() - work.requested_at < self.abandon_s:
                    continue
                try:
                    requested_at = await self.leases.requested_at(work.digest)
                except (NatsError, TimeoutError) as error:
                    log.warning("cannot read whether work is still requested", error=repr(error))
                    continue
                if time.time() - requested_at < self.abandon_s:
                    continue
                if work.task is not None and not work.waiting:
                    log.info("work ended", job=work.question.job_id, reason=_ABANDONED)
                    work.task.cancel()

    async def close(self) -> None:
        """End all work; its cost is kept for the next request."""
        tasks = [work.task for work in self._works.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, question: JudgeRollouts, digest: str, slot: Slot) -> None:
        work = self._works[digest] = _Work(question, digest)
        work.task = asyncio.create_task(self._work(work))
        WORKING.inc()

        def ended(task: asyncio.Task[JudgeAnswer]) -> None:
            if not task.cancelled() and task.exception() is not None and not work.waiting:
                log.error("work failed with nobody to tell", job=question.job_id, error=repr(task.exception()))
            del self._works[digest]
            slot.release()
            WORKING.dec()

        work.task.add_done_callback(ended)

    async def _work(self, work: _Work) -> JudgeAnswer:
        org = work.question.org
        async with self.leases.hold(work.digest):
            earlier = await self.cache.find_undelivered(org, work.digest)
            if earlier is not None:
                await self.cache.drop_undelivered(org, work.digest)
                if earlier.failure is None:
                    return earlier
                work.usage.add(earlier.usage)
            try:
                answer = await self._result(work)
            except asyncio.CancelledError:
                if work.usage.calls:
                    failure = away(_ABANDONED, where="judge", retry_after_s=0).failure
                    await self.cache.put_undelivered(
                        org, work.digest, JudgeAnswer(failure=failure, usage=work.usage.reported())
                    )
                raise
            if not work.waiting:
                await self.cache.put_undelivered(org, work.digest, answer)
                if work.waiting:
                    await self.cache.drop_undelivered(org, work.digest)
            return answer

    async def _result(self, work: _Work) -> JudgeAnswer:
        try:
            reviews = await self.worker.run(work.question, work.usage)
        except JudgeTrouble as trouble:
            failure = trouble.failure
            log.info("no scores", job=work.question.job_id, kind=failure.kind, reason=failure.problem.text())
            return JudgeAnswer(failure=failure, usage=work.usage.reported())
        return JudgeAnswer(reviews=reviews, usage=work.usage.reported())

"""Work that goes on without its asker: joined, heard later, taken up after a restart, or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from synth.events import BlobRef
from synth.fairness.slots import FairSlots
from synth.ids import new_org_id
from synth.judge.cache import AnswerCache
from synth.judge.judging import QuestionWorker
from synth.judge.leases import Leases
from synth.judge.questions import QuestionDesk
from synth.judge.usage import UsageCount
from synth.judging.contract import JudgeRollouts, JudgeUsage, RolloutReview, RolloutToJudge
from synth.judging.settings import JudgeModel, Judging, Rubric

ROLLOUT = RolloutToJudge(rollout_id="r", transcript=BlobRef(uri="blob://never-read", sha256="0", size=0))


class SlowWorker:
    """Makes one call, and answers when it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.begun, self.answer, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, question: JudgeRollouts, usage: UsageCount) -> list[RolloutReview]:
        if not question.rollouts:
            return []
        self.runs += 1
        usage.calls += 1
        usage.votes += 7
        self.begun.set()
        try:
            await self.answer.wait()
            return [RolloutReview(rollout_id="r")]
        finally:
            self.over.set()


@pytest.fixture
async def open_desk(bus_as, blobs) -> Callable:
    async def make(worker: SlowWorker, *, abandon_s: float = 60.0, answer_s: float = 60.0) -> QuestionDesk:
        return QuestionDesk(
            worker=cast(QuestionWorker, cast(Any, worker)),
            cache=AnswerCache(blobs, keep_s=3600),
            leases=Leases(await bus_as("judge"), every_s=0.5),
            slots=FairSlots(4, per_organisation=1),
            abandon_s=abandon_s,
            answer_s=answer_s,
        )

    return make


def question(*, org: str = "", job: str = "job_1") -> JudgeRollouts:
    judging = Judging(judges=[JudgeModel(model="m", url="http://unused")])
    return JudgeRollouts(org=org or new_org_id(), job_id=job, judging=judging, rubric=Rubric(), rollouts=[ROLLOUT])


async def given_up(desk: QuestionDesk, worker: SlowWorker, asked: JudgeRollouts) -> None:
    """Ask, and give up once the work has begun."""
    asking = asyncio.create_task(desk.answer(asked))
    await worker.begun.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_who_gives_up_ends_nobodys_work_and_the_next_one_is_told_what_it_cost(open_desk):
    worker, asked = SlowWorker(), question()
    desk = await open_desk(worker)
    await given_up(desk, worker, asked)
    joined = [asyncio.create_task(desk.answer(asked)) for _ in range(2)]
    await asyncio.sleep(0)
    worker.answer.set()
    answers = await asyncio.gather(*joined)
    assert ([answer.usage.calls for answer in answers], worker.runs) == ([0, 1], 1)


async def test_an_answer_that_nobody_heard_is_told_once_after_a_restart(open_desk):
    worker, asked = SlowWorker(), question()
    first = await open_desk(worker)
    await given_up(first, worker, asked)
    worker.answer.set()
    await worker.over.wait()
    later = await open_desk(SlowWorker())
    heard = await later.answer(asked)
    assert (heard.reviews, heard.usage.calls) == ([RolloutReview(rollout_id="r")], 1)


async def test_what_was_paid_for_when_a_process_stopped_is_told_by_its_successor(open_desk):
    worker, asked = SlowWorker(), question()
    first = await open_desk(worker)
    await given_up(first, worker, asked)
    await first.close()
    successor = SlowWorker()
    successor.answer.set()
    answer = await (await open_desk(successor)).answer(asked)
    assert (answer.usage.calls, successor.runs) == (2, 1)


async def test_work_that_nobody_asks_for_ends(open_desk):
    worker, asked = SlowWorker(), question()
    desk = await open_desk(worker, abandon_s=0.2)
    ending = asyncio.create_task(desk.end_abandoned())
    await given_up(desk, worker, asked)
    await asyncio.wait_for(worker.over.wait(), 10)
    assert not worker.answer.is_set()
    ending.cancel()


async def test_who_waits_for_long_work_is_told_that_it_goes_on_and_then_its_answer_and_its_cost(open_desk):
    worker, asked = SlowWorker(), question()
    desk = await open_desk(worker, answer_s=3.0)
    told = await desk.answer(asked)
    assert told.failure is not None
    assert (told.failure.kind, told.failure.retry_after_s, told.progress, told.usage) == ("working", 0, 7, JudgeUsage())
    worker.answer.set()
    answer = await desk.answer(asked)
    assert (answer.failure, answer.usage.calls, worker.runs) == (None, 1, 1)


async def test_an_organisation_that_asks_much_keeps_no_other_one_out(open_desk):
    worker = SlowWorker()
    desk = await open_desk(worker, answer_s=3.0)
    greedy = [asyncio.create_task(desk.answer(question(org="org_greedy", job=f"job_{n}"))) for n in range(9)]
    await worker.begun.wait()
    # Whether its judges could be asked at all is said at once.
    checked = await desk.answer(msgspec.structs.replace(question(org="org_greedy"), rollouts=[]))
    assert checked.failure is None
    told = await asyncio.gather(*greedy, desk.answer(question(org="org_other")))
    assert [answer.failure and answer.failure.kind for answer in told] == ["working"] * 10
    # One of four slots is a quarter; eight wait, and the other organisation is worked for.
    assert ([answer.progress for answer in told].count(7), told[-1].progress, worker.runs) == (2, 7, 2)
    worker.answer.set()

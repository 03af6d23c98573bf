"""Work that goes on without its asker: joined, heard later, taken up after a restart, or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from synth.ids import new_org_id
from synth.judge.cache import AnswerCache
from synth.judge.judging import QuestionWorker
from synth.judge.leases import Leases
from synth.judge.questions import QuestionDesk
from synth.judge.usage import UsageCount
from synth.judging.contract import JudgeRollouts, RolloutReview
from synth.judging.settings import JudgeModel, Judging, Rubric


class SlowWorker:
    """Makes one call, and answers when it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.begun, self.answer, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, question: JudgeRollouts, usage: UsageCount) -> list[RolloutReview]:
        self.runs += 1
        usage.calls += 1
        self.begun.set()
        try:
            await self.answer.wait()
            return [RolloutReview(rollout_id="r")]
        finally:
            self.over.set()


@pytest.fixture
async def open_desk(bus_as, blobs) -> Callable:
    async def make(worker: SlowWorker, *, abandon_s: float = 60.0) -> QuestionDesk:
        leases = Leases(await bus_as("judge"), replica=f"judge-{id(worker)}", every_s=1.0)
        cache = AnswerCache(blobs, keep_s=3600)
        return QuestionDesk(
            cast(QuestionWorker, cast(Any, worker)), cache, leases, max_questions=4, abandon_s=abandon_s
        )

    return make


def question() -> JudgeRollouts:
    judging = Judging(judges=[JudgeModel(model="m", url="http://unused")])
    return JudgeRollouts(org=new_org_id(), job_id="job_1", judging=judging, rubric=Rubric(), rollouts=[])


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

"""Two judges of one cluster: one limit of calls per second, one cache, and one worker for a question."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from synth.errors import Transient
from synth.judging.settings import Criterion, JudgeModel, Rubric
from tests.judge_server import JudgeServer, held, scored
from tests.service.judge.conftest import transcript

RUBRIC = Rubric(outcome=[Criterion(id="polite", description="?")])
EVENTS = Rubric(event=RUBRIC.outcome)
RATE, AT_ONCE = 20, 6


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(scored(lambda call: 0.5)) as server:
        yield server


@pytest.fixture(scope="module")
def settings(judge: JudgeServer) -> dict[str, Any]:
    provider = {
        "base_url": judge.url,
        "api_key": "sk-operator",
        "requests_per_second": RATE,
        "max_concurrency": AT_ONCE,
        "price_per_million_prompt_tokens": 2.0,
        "price_per_million_completion_tokens": 8.0,
        "models": ["scripted"],
    }
    # The margin is what a busy machine may hold one call up by, on its way to the API.
    margin = {"SYNTH_JUDGE_RATE_MARGIN_S": "0.5"}
    return {"SYNTH_JUDGE_PROVIDERS": {"acme": provider}, "SYNTH_JUDGE_WORK_S": "0.5", **margin}


@pytest.fixture(autouse=True, scope="module")
def services(start_judge, settings: dict[str, Any]) -> Iterator[None]:
    with start_judge("a", **settings), start_judge("b", **settings):
        yield


@pytest.fixture
async def asker(asker_of, judge: JudgeServer):
    judge.calls.clear()
    judge.at_once = 0
    judge.script = scored(lambda call: 0.5)
    made = await asker_of(judge.url)
    made.model = JudgeModel(model="scripted", provider="acme")
    return made


async def test_no_second_has_more_calls_than_the_operator_allows(asker, judge):
    judge.script = scored(lambda call: 0.5, delay=0.2)
    questions = [asker.ask(transcript(str(n)), rubric=RUBRIC, max_concurrency=64) for n in range(60)]
    answers = await asyncio.gather(*questions)
    assert [answer.failure for answer in answers] == [None] * 60
    assert len(judge.calls) == 60
    assert judge.busiest_second() <= RATE
    assert judge.at_once <= AT_ONCE
    assert {call.headers["authorization"] for call in judge.calls} == {"Bearer sk-operator"}
    assert answers[0].usage.cost == pytest.approx((100 * 2 + 10 * 8) / 1e6)


async def test_a_jobs_own_limits_hold_below_the_operators(asker, judge):
    limits = {"requests_per_second": 5.0, "max_concurrency": 1, "rubric": RUBRIC}
    await asyncio.gather(*(asker.ask(transcript(str(n)), **limits) for n in range(12)))
    assert judge.busiest_second() <= 5
    assert judge.at_once == 1


async def test_questions_without_a_job_share_a_limit_in_their_organisation_alone(asker, asker_of, judge):
    answering, good = threading.Event(), scored(lambda call: 0.5)
    judge.script = lambda call: (held(answering, good) if "slow" in call.text else good)(call)
    settings = {"rubric": RUBRIC, "max_concurrency": 1, "judges": [asker.model]}
    other = await asker_of(judge.url)
    held_up = msgspec.structs.replace(await asker.question(transcript("slow"), **settings), job_id="")
    quick = msgspec.structs.replace(await other.question(transcript("quick"), **settings), job_id="")
    slow = asyncio.create_task(asker.put(held_up))
    await asyncio.to_thread(judge.wait_for_calls, 1)
    assert (await other.put(quick)).failure is None
    answering.set()
    assert (await slow).failure is None


async def test_both_find_what_either_has_asked(asker, judge):
    await asyncio.gather(*(asker.ask(transcript("same"), job=f"job_{n}", rubric=RUBRIC) for n in range(12)))
    # Each of the two may have asked before the other had an answer.
    assert len(judge.calls) <= 2


async def test_a_question_that_either_replica_is_asked_again_is_worked_at_by_one(asker, judge):
    answering = threading.Event()
    judge.script = held(answering, scored(lambda call: 0.5))
    question = await asker.question(transcript("long"), rubric=RUBRIC)
    for _ in range(4):
        with pytest.raises(Transient):
            await asker.put(question, within=0.4)
    again = asyncio.create_task(asker.put(question))
    await asyncio.to_thread(judge.wait_for_calls, 1)
    answering.set()
    answer = await again
    assert (answer.failure, answer.reviews[0].outcome.total, len(judge.calls)) == (None, 0.5, 1)


async def test_a_model_that_the_operator_does_not_open_is_refused(asker, judge):
    answer = await asker.ask(transcript("?"), judges=[JudgeModel(model="dear", provider="acme")], rubric=RUBRIC)
    assert answer.failure is not None
    assert "is not open for the model 'dear'; expected one of scripted" in answer.failure.problem.text()
    assert judge.calls == []


async def test_a_judge_that_is_stopped_tells_its_askers_and_keeps_what_it_was_answered(
    asker, judge, start_judge, settings
):
    answering = threading.Event()
    first = scored(lambda call: 0.5)
    judge.script = lambda call: first(call) if call.number <= 6 else held(answering, first)(call)
    limits = {"event": True, "outcome": False, "rubric": EVENTS, "max_concurrency": 1}
    questions = [await asker.question(transcript("a", f"b {n}"), job=f"job_{n}", **limits) for n in range(24)]
    with start_judge("stopped", **settings) as stopped:
        asked = [asyncio.create_task(asker.put(question, within=60)) for question in questions]
        await asyncio.to_thread(judge.wait_for_calls, 12)
        await asyncio.to_thread(stopped.stack.close)
        # Nobody who asked the one that stopped waits until the end of its time.
        done, _ = await asyncio.wait(asked, timeout=10, return_when=asyncio.FIRST_EXCEPTION)
        assert any(isinstance(task.exception(), Transient) for task in done)
        answering.set()
        await asyncio.gather(*asked, return_exceptions=True)
    again = await asyncio.gather(*(asker.put(question) for question in questions))
    assert [[event.total for event in answer.reviews[0].events] for answer in again] == [[0.5] * 2] * 24


async def test_a_killed_replica_loses_no_question_and_little_that_was_paid_for(asker, judge, start_judge, settings):
    """Its questions are taken over by whoever is asked again; what its judge had answered is found in the cache."""
    answering = threading.Event()
    first = scored(lambda call: 0.5)
    judge.script = lambda call: first(call) if call.number <= 6 else held(answering, first)(call)
    limits = {"event": True, "outcome": False, "rubric": EVENTS, "max_concurrency": 6}
    questions = [await asker.question(transcript("one", f"two {n}"), **limits) for n in range(24)]
    with start_judge("killed", **settings) as killed:
        asked = [asyncio.create_task(asker.put(question, within=6)) for question in questions]
        await asyncio.to_thread(judge.wait_for_calls, 12)
        await asyncio.to_thread(killed.kill)
        answering.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert any(isinstance(answer, Transient) for answer in answers)
    again = await asyncio.gather(*(asker.put(question) for question in questions))
    assert [answer.failure for answer in again if answer.failure is not None] == []
    assert [[event.total for event in answer.reviews[0].events] for answer in again] == [[0.5] * 2] * 24
    # The calls that were under way when their replica died may have been made once more.
    assert len(judge.calls) <= 24 * 2 + 6

"""What one organisation asks, or sets, changes nothing for another one, and has bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from synth.judging.settings import Criterion, JudgeModel, Rubric
from tests.judge_server import JudgeServer, failing, hanging, held, scored
from tests.service.judge.conftest import transcript


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(scored(lambda call: 1.0)) as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def service(start_judge) -> Iterator[None]:
    with start_judge("sharing", SYNTH_JUDGE_MAX_TRANSCRIPT_BYTES="100000", SYNTH_JUDGE_ORG_CONNECTIONS="6"):
        yield


async def test_a_short_time_to_answer_keeps_no_other_call_from_the_api(judge, asker_of):
    judge.script = hanging
    asker = await asker_of(judge.url)
    hasty = [asker.ask(transcript(f"please {n}"), timeout_s=1) for n in range(5)]
    assert {answer.failure and answer.failure.kind for answer in await asyncio.gather(*hasty)} == {"away"}
    judge.script = scored(lambda call: 1.0)
    assert (await asker.ask(transcript("please"))).failure is None


async def test_a_model_that_fails_keeps_nobody_from_another_one_of_its_api(judge, asker_of):
    good, bad = scored(lambda call: 1.0), failing(500)
    judge.script = lambda call: (bad if call.body["model"] == "bad" else good)(call)
    asker = await asker_of(judge.url)
    failed = [JudgeModel(model="bad", url=judge.url)]
    answers = [await asker.ask(transcript(f"please {n}"), judges=failed) for n in range(6)]
    assert answers[-1].failure is not None
    assert "left alone" in answers[-1].failure.problem.what
    assert (await asker.ask(transcript("please"))).failure is None


async def test_a_refusal_that_no_schema_was_the_cause_of_takes_it_from_no_later_call(judge, asker_of):
    judge.script = failing(400, "this text has a schema that we refuse")
    asker = await asker_of(judge.url)
    answer = await asker.ask(transcript("please"))
    assert answer.failure is not None
    assert answer.failure.kind == "refused"
    judge.script = scored(lambda call: 1.0)
    await asker.ask(transcript("please, too"))
    assert [("response_format" in call.body) for call in judge.calls] == [True, False, True]


async def test_the_calls_of_an_organisation_wait_for_each_other_and_keep_nobody_else_waiting(judge, asker_of):
    answering, good = threading.Event(), scored(lambda call: 1.0)
    busy, other = await asker_of(judge.url), await asker_of(judge.url)
    slow = [JudgeModel(model="slow", url=judge.url)]
    judge.script = lambda call: (held(answering, good) if call.body["model"] == "slow" else good)(call)
    asked = [asyncio.create_task(busy.ask(transcript(f"please {n}"), judges=slow, max_concurrency=9)) for n in range(9)]
    await asyncio.to_thread(judge.wait_for_calls, 6)
    assert (await other.ask(transcript("please"))).failure is None
    assert len(judge.calls) == 7
    answering.set()
    assert [answer.failure for answer in await asyncio.gather(*asked)] == [None] * 9
    assert judge.at_once <= 7


HEAVY = Criterion(id="a", description="?", weight=1e308, scale="count")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"timeout_s": 0.5}, "timeout_s is 0.5; expected 1 to 3600"),
        ({"timeout_s": 3601}, "timeout_s is 3601"),
        ({"max_attempts": 10**12}, "max_attempts is 1000000000000; expected 1 to 20"),
        ({"max_concurrency": 1025}, "max_concurrency is 1025; expected 1 to 1024"),
        ({"judges": [JudgeModel(model="m", url="http://unused", votes=10**9)]}, "expected 1 to 64"),
        (
            {
                "rubric": Rubric(
                    outcome=[Criterion(id="a", description="?", weight=1e308, scale="count")], aggregation="sum"
                )
            },
            "make sums that no number holds",
        ),
    ],
)
async def test_a_setting_out_of_its_bounds_is_refused(settings, what: str, judge, asker_of):
    answer = await (await asker_of(judge.url)).ask(transcript("please"), **settings)
    assert answer.failure is not None
    assert answer.failure.kind == "refused"
    assert what in answer.failure.problem.text()
    assert judge.calls == []


async def test_a_recording_that_is_too_large_is_refused_before_it_is_read(judge, asker_of):
    answer = await (await asker_of(judge.url)).ask(transcript("x" * 200_000))
    assert answer.failure is not None
    assert (answer.failure.kind, judge.calls) == ("refused", [])
    assert "a judge is shown 100,000 at most" in answer.failure.problem.text()
    assert "SYNTH_JUDGE_MAX_TRANSCRIPT_BYTES" in answer.failure.problem.text()

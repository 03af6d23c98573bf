"""Bytes that organisations share: no more than half for one, and those that wait by turns."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from synth.errors import UserError
from synth.fairness.memory import FairMemory
from synth.outbound.answer_memory import AnswerMemory, AnswerMemoryFull, AnswerSettings


async def test_one_organisation_has_half_and_waits_for_its_own() -> None:
    memory = FairMemory(100)
    with ExitStack() as holding:
        first, second, other = (holding.enter_context(memory.hold(org)) for org in ("loud", "loud", "quiet"))
        assert memory.try_take(first, 50)
        assert not memory.try_take(second, 1)
        assert memory.try_take(other, 50)
        waiting = asyncio.create_task(memory.wait_to_take(second, 30, seconds=20))
        await asyncio.sleep(0)
        memory.give_back(other, 50)
        await asyncio.sleep(0)
        assert not waiting.done(), "the room of another organisation is not its own"
        memory.give_back(first, 50)
        await waiting
        assert (first.size, second.size, memory.held_by("loud")) == (0, 30, 30)
    assert memory.held_by("loud") == 0


async def test_room_goes_to_the_organisation_that_holds_least() -> None:
    memory = FairMemory(100)
    with ExitStack() as holding:
        orgs = ("a", "b", "c", "a", "c")
        a, b, c, more_a, more_c = (holding.enter_context(memory.hold(org)) for org in orgs)
        assert all(memory.try_take(held, size) for held, size in ((a, 30), (b, 50), (c, 20)))
        waiting = [asyncio.create_task(memory.wait_to_take(held, 20, seconds=20)) for held in (more_a, more_c)]
        await asyncio.sleep(0)
        memory.give_back(b, 20)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.done() for task in waiting] == [False, True]
        memory.give_back(b, 20)
        await asyncio.gather(*waiting)


async def test_an_answer_that_waits_has_one_deadline_for_all_its_bytes() -> None:
    answers = AnswerMemory(1 << 20, wait_s=0.05)
    with answers.hold("org") as large, answers.hold("org") as small:
        await large.resize(500_000)
        await small.resize(64 << 10)  # the first 64 KiB do not count
        with pytest.raises(AnswerMemoryFull, match="SYNTH_ANSWER_MEMORY_WAIT_S"):
            await small.resize(300_000)
        assert small.seconds_left <= 0
        await large.resize(0)
        await small.resize(300_000)


def test_the_memory_holds_two_answers_of_the_largest_size() -> None:
    with pytest.raises(UserError, match="at least twice SYNTH_MAX_ANSWER_BYTES"):
        AnswerSettings(max_answer_bytes=1000, answer_memory_bytes=1999)
    assert AnswerSettings(max_answer_bytes=1000, answer_memory_bytes=2000)

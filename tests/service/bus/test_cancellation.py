"""Cancellations that a library swallows, and the helper that cancels until a task has ended."""

from __future__ import annotations

import asyncio

import pytest

from synth.bus.cancellation import cancel_until_ended
from synth.errors import Transient


class Swallowing:
    """Work that waits by `wait_for`, and whose answers come in the turn in which it is cancelled."""

    def __init__(self, times: int) -> None:
        self.swallowed = 0
        self._times = times
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._answer = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._answer, 60)
                self.swallowed += 1
            except asyncio.CancelledError:
                if self.swallowed >= self._times:
                    raise
                self.swallowed += 1

    def answer(self) -> None:
        if not self._answer.done() and self.swallowed < self._times:
            self._answer.set_result(None)


async def test_a_task_that_swallows_cancellations_is_cancelled_until_it_has_ended():
    works = [Swallowing(times=n % 3) for n in range(9)]
    await asyncio.wait([work.task for work in works], timeout=0.01)
    for work in works:
        work.answer()
    async with asyncio.timeout(10):
        await cancel_until_ended(*(work.task for work in works), what="work", again_s=0.01, within_s=5)
    assert all(work.task.cancelled() for work in works)
    assert [work.swallowed for work in works] == [0, 1, 2] * 3


async def test_a_task_that_never_ends_is_given_up_with_its_name():
    work = Swallowing(times=1_000_000)
    await asyncio.wait([work.task], timeout=0.01)
    with pytest.raises(Transient, match="the work of job_1 goes on"):
        await cancel_until_ended(work.task, what="the work of job_1", again_s=0.01, within_s=0.05)
    work._times = 0
    await cancel_until_ended(work.task, what="work", again_s=0.01, within_s=5)


async def test_a_task_that_was_just_created_cleans_up():
    cleaned: list[int] = []

    async def work(n: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(n)

    await cancel_until_ended(*(asyncio.create_task(work(n)) for n in range(3)), what="work")
    assert cleaned == [0, 1, 2]


async def test_what_an_ended_task_raised_is_its_own_affair():
    async def fail() -> None:
        raise ValueError

    failed = asyncio.create_task(fail())
    await asyncio.wait([failed])
    await cancel_until_ended(failed, what="work")

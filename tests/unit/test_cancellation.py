"""A cancellation that meets the answer of the bus is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from synth.bus.cancellation import heed_cancellation


async def asked(future: asyncio.Future[int], wrap: Callable[[Awaitable[int]], Awaitable[int]]) -> int:
    """As nats-py waits for an answer."""
    return await wrap(asyncio.wait_for(future, 5))


async def cancelled_as_it_is_answered(wrap: Callable[[Awaitable[int]], Awaitable[int]], *, fails: bool = False) -> bool:
    """Whether a task that is cancelled in the turn in which its answer comes ends cancelled."""
    future = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(asked(future, wrap))
    await asyncio.sleep(0)
    if fails:
        future.set_exception(ValueError("refused"))
    else:
        future.set_result(1)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def test_the_answer_does_not_swallow_it():
    assert await cancelled_as_it_is_answered(heed_cancellation)
    assert await cancelled_as_it_is_answered(heed_cancellation, fails=True)


async def test_it_may_time_the_call_out():
    async def late() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 1  # as `wait_for` does
        return 0

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await heed_cancellation(late())


async def test_what_cleans_up_after_a_cancellation_may_ask_the_bus():
    answers: list[int] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            answers.append(await heed_cancellation(asyncio.sleep(0, 7)))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert answers == [7]


async def test_an_answer_and_an_error_pass():
    async def refuse() -> int:
        raise ValueError("refused")

    assert await heed_cancellation(asyncio.sleep(0, 3)) == 3
    with pytest.raises(ValueError, match="refused"):
        await heed_cancellation(refuse())

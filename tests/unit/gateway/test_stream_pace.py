"""The pace at which open event streams send their past."""

from __future__ import annotations

import asyncio

from synth.gateway.streams.pace import Pace


async def _streams(pace: Pace, number: int, sent: list[int]) -> list[asyncio.Task[None]]:
    async def stream(k: int) -> None:
        await pace.turn()
        sent.append(k)

    tasks = [asyncio.create_task(stream(k)) for k in range(number)]
    await asyncio.sleep(0)
    return tasks


async def _iterations(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_stream_that_is_opened_goes_before_the_past_of_a_hundred_others():
    pace, sent = Pace(), list[int]()
    with pace.opening():
        tasks = await _streams(pace, 100, sent)
        await _iterations(10)
        while_opening = len(sent)
    await asyncio.gather(*tasks)
    assert 1 <= while_opening <= 10
    assert sent == list(range(100)), "in the order of their requests"


async def test_streams_that_are_opened_without_end_do_not_stop_the_others():
    pace, sent = Pace(), list[int]()
    with pace.opening():
        async with asyncio.timeout(10):
            await asyncio.gather(*await _streams(pace, 100, sent))
    assert len(sent) == 100


async def test_a_stream_whose_client_leaves_takes_no_turn():
    pace, sent = Pace(), list[int]()
    with pace.opening():
        tasks = await _streams(pace, 50, sent)
        for task in tasks[:49]:
            task.cancel()
        await _iterations(4)
    assert sent == [49]

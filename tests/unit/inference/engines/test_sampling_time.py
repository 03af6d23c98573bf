"""The time for sampling runs while a policy is sampled, and stands still while all of its requests wait."""

from __future__ import annotations

import asyncio
import math

import pytest

from synth.inference.engines.sampling_time import OpenTimes, QueuedTimes, SamplingTime


class Clock:
    """The clock of the event loop, moved by hand. It begins at a whole second, so that sums of its moves are exact."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = math.ceil(loop.time())
        self._loop = loop

    async def move(self, seconds: float) -> None:
        """Let the time pass, and run what became due."""
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    moved = Clock(loop)
    monkeypatch.setattr(loop, "time", lambda: moved.now)
    return moved


@pytest.fixture
def ended() -> list[str]:
    """The names of the requests that were cut off."""
    return []


async def test_time_runs_while_a_request_is_sampled_and_between_requests(clock: Clock, ended: list[str]) -> None:
    time = SamplingTime(10)
    await clock.move(3)
    with time.request(lambda: ended.append("a")) as request:
        await clock.move(4)
        assert (time.seconds_left, time.stood_still, ended) == (3, 0, [])
        await clock.move(3.1)
        assert (ended, request.is_over) == (["a"], True)


async def test_time_stands_still_while_all_requests_wait_and_no_longer(clock: Clock, ended: list[str]) -> None:
    time = SamplingTime(10)
    with time.request(lambda: ended.append("a")) as a, time.request(lambda: ended.append("b")) as b:
        a.hold()
        await clock.move(2)  # b is sampled
        b.hold()
        await clock.move(100)
        assert (time.seconds_left, time.stood_still, ended) == (8, 100, [])
        a.release()
        await clock.move(7)
        assert (time.seconds_left, time.stood_still, ended) == (1, 100, [])
        await clock.move(1.1)
        assert sorted(ended) == ["a", "b"]


async def test_reasons_to_wait_are_counted(clock: Clock, ended: list[str]) -> None:
    time, engine = SamplingTime(10), OpenTimes()
    engine.hold()
    with engine.request(time, lambda: ended.append("a")) as request:
        request.hold()  # in the queue, too
        engine.release()
        await clock.move(50)
        assert time.seconds_left == 10
        request.release()
        with engine.held():
            await clock.move(50)
        await clock.move(9)
        assert (time.seconds_left, time.stood_still, ended) == (1, 100, [])


async def test_those_that_came_last_wait_in_a_queue_of_known_length(clock: Clock) -> None:
    queue, time = QueuedTimes(), SamplingTime(10)
    with time.request(lambda: None) as a, time.request(lambda: None) as b, time.request(lambda: None) as c:
        with queue.request(a), queue.request(b), queue.request(c):
            assert [r.held for r in (a, b, c)] == [True, True, True]
            queue.update(2)
            assert [r.held for r in (a, b, c)] == [False, True, True]
            queue.update(0)
            assert [r.held for r in (a, b, c)] == [False, False, False]
            queue.update(1)
            assert [r.held for r in (a, b, c)] == [False, False, True]
        assert [r.held for r in (a, b, c)] == [False, False, False]


async def test_an_engine_that_does_not_end_a_request_counts_as_hung(clock: Clock, ended: list[str]) -> None:
    time = SamplingTime(1, over_after_s=5)
    with time.request(lambda: ended.append("a")) as request:

        async def wait() -> None:
            async with request.limit():
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await clock.move(2)
        assert (ended, waiting.done()) == (["a"], False)
        await clock.move(6)
        with pytest.raises(TimeoutError):
            await waiting

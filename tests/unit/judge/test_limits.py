"""The arithmetic of turns, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count

import pytest

from synth.judge.api.breaker import CircuitBreaker, CircuitOpen
from synth.judge.api.limits import ApiLimits, LimitState, Wish, give_back, grant, next_look
from synth.judge.failures import JudgeTrouble, refused
from synth.judge.voting import run_all


def granted(state: LimitState, wishes: list[Wish], limits: ApiLimits, *, now: float, replica: str = "a", margin=0.0):
    return grant(state, wishes, limits, replica=replica, now=now, margin_s=margin, hold_s=20.0)


WISH = Wish(job="job", concurrency=1000)


@pytest.mark.parametrize(("rate", "margin"), [(50.0, 0.05), (7.0, 0.05), (1.0, 0.0), (0.5, 0.05)])
def test_no_second_has_more_calls_than_the_rate_whoever_takes_them_and_when(rate: float, margin: float):
    state, chance = LimitState(), random.Random(0)
    now, moments = 1000.0, list[float]()
    while len(moments) < 300:
        replica = chance.choice("ab")
        found = granted(state, [WISH] * 5, ApiLimits(rate=rate), now=now, replica=replica, margin=margin)
        # Each call leaves at its moment, or later by as much as is allowed.
        moments += [moment + chance.uniform(0, margin) for moment in found if moment is not None]
        give_back(state, {"job": 5}, replica=replica)
        now += chance.uniform(0, 0.1)
    moments.sort()
    busiest = max(sum(start <= m < start + 1.0 for m in moments) for start in moments)
    assert busiest <= max(1.0, rate)
    # And the rate is used: a call is not held back for longer than it must be.
    assert len(moments) / (moments[-1] - moments[0]) > 0.8 * rate


def test_a_jobs_own_rate_holds_no_other_job_back():
    state, slow = LimitState(), Wish(job="slow", rate=0.1, concurrency=9)
    first = granted(state, [slow, slow, WISH], ApiLimits(), now=5.0)
    assert first == [5.0, None, 5.0]
    assert granted(state, [slow], ApiLimits(), now=14.0) == [None]
    assert granted(state, [slow], ApiLimits(), now=15.0) == [15.0]


def test_calls_at_one_time_are_counted_over_the_replicas_by_job_and_by_api():
    state, two = LimitState(), Wish(job="job", concurrency=2)
    assert granted(state, [two], ApiLimits(), now=0.0, replica="a") == [0.0]
    assert granted(state, [two, two], ApiLimits(), now=0.0, replica="b") == [0.0, None]
    give_back(state, {"job": 1}, replica="a")
    assert granted(state, [two], ApiLimits(), now=1.0, replica="b") == [1.0]
    assert granted(state, [WISH], ApiLimits(concurrency=2), now=1.0) == [None]


def test_the_calls_of_a_replica_that_is_silent_are_over_after_a_while():
    state, one = LimitState(), Wish(job="job", concurrency=1)
    assert granted(state, [one], ApiLimits(), now=0.0, replica="dead") == [0.0]
    assert granted(state, [one], ApiLimits(), now=19.9, replica="b") == [None]
    assert granted(state, [one], ApiLimits(), now=20.1, replica="b") == [20.1]


def test_a_pause_holds_everybody_and_says_when_to_look_again():
    state = LimitState(paused_until=103.0)
    assert granted(state, [WISH], ApiLimits(), now=100.0) == [None]
    assert next_look(state, [WISH], now=102.8, poll_s=0.05) == pytest.approx(0.15)
    assert granted(state, [WISH], ApiLimits(), now=103.0) == [103.0]


def test_the_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through():
    now = [0.0]
    breaker = CircuitBreaker(failures=2, open_s=5.0, max_open_s=8.0, clock=lambda: now[0])
    for outcome in (breaker.failed, breaker.failed):
        breaker.enter()
        outcome("down")
    with pytest.raises(CircuitOpen, match="down") as left:
        breaker.enter()
    assert left.value.seconds == 5.0
    now[0] = 5.0
    breaker.enter()
    with pytest.raises(CircuitOpen):
        breaker.enter()
    breaker.failed("still down")
    now[0] = 12.0
    with pytest.raises(CircuitOpen) as left:
        breaker.check()
    assert left.value.seconds == pytest.approx(1.0)
    now[0] = 13.0
    breaker.enter()
    # A probe that is given up leaves the next one its turn.
    breaker.abandoned()
    breaker.enter()
    breaker.succeeded()
    breaker.enter()
    breaker.enter()


def test_failures_that_are_not_in_a_row_open_nothing():
    breaker = CircuitBreaker(failures=2, open_s=5.0, max_open_s=60.0)
    for _ in range(5):
        breaker.failed("hiccup")
        breaker.succeeded()
    breaker.check()


async def test_votes_are_made_one_by_one_and_none_after_the_first_trouble():
    made, running, most = 0, 0, 0

    async def vote(number: int) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        if number == 50:
            raise refused("enough", where="judge")

    def votes() -> Iterator[Callable[[], Awaitable[None]]]:
        nonlocal made
        for made in count():
            yield partial(vote, made)

    with pytest.raises(JudgeTrouble, match="enough"):
        await run_all(votes(), at_once=4)
    assert (most, made <= 50 + 4) == (4, True)

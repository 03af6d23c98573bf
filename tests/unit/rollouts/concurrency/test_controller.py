"""The pace: where it settles, what it answers to, and what it never does. Time is given, so nothing waits."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from synth.rollouts.concurrency.controller import START, Harm, Pace

HARMS = st.sampled_from([None, None, None, Harm.OVERLOAD, Harm.TIMEOUT, Harm.STALE])


def rounds(pace: Pace, count: int, *, begin: float = 0.0, bears: int = 10**9) -> list[int]:
    """Rounds of one second at a task app that answers 429 to whoever exceeds what it bears; the limit after each."""
    limits: list[int] = []
    for n in range(count):
        started, sent = begin + n, pace.limit
        for rollout in range(sent):
            harm = Harm.OVERLOAD if rollout >= bears else None
            pace.ended(started + 0.9, started=started, full=True, harm=harm)
        limits.append(pace.limit)
    return limits


def test_without_harm_it_doubles_each_round_up_to_the_users_bound():
    pace = Pace(64)
    assert (pace.limit, rounds(pace, 4)) == (START, [16, 32, 64, 64])
    assert Pace(3).limit == 3


def test_a_limit_that_is_not_reached_does_not_grow():
    pace = Pace(64)
    for _ in range(100):
        pace.ended(1.0, started=0.0, full=False)
    assert pace.limit == START


def test_what_was_sent_together_is_one_cause_and_halves_once():
    pace = Pace(64)
    rounds(pace, 3)
    for _ in range(40):
        pace.ended(10.0, started=9.0, full=True, harm=Harm.OVERLOAD)
    assert (pace.limit, pace.halved, pace.cause, pace.rising) == (32, {Harm.OVERLOAD: 1}, Harm.OVERLOAD, False)
    pace.ended(12.0, started=10.5, full=True, harm=Harm.TIMEOUT)
    assert pace.limit == 16


@given(bears=st.integers(1, 64), bound=st.integers(1, 128))
def test_at_an_app_that_bears_so_many_it_stays_near_them(bears: int, bound: int):
    pace = Pace(bound)
    settled = rounds(pace, 80, bears=bears)[40:]
    most = min(bears, bound)
    step = max(1, bound / 16)
    assert max(settled) <= most + step + 1
    assert sum(settled) / len(settled) >= 0.5 * most - 1


def test_after_a_backlog_what_was_borne_is_back_within_a_few_steps():
    pace = Pace(64)
    rounds(pace, 3)
    pace.stepped(4.0, waiting=0, busy=0.2)
    pace.stepped(5.0, waiting=0, busy=0.3)
    assert (pace.limit, pace.halved[Harm.BACKLOG]) == (16, 2)
    assert rounds(pace, 3, begin=6) == [16, 16, 16], "a trainer that has a batch to go on with needs no more"
    pace.stepped(10.0, waiting=-1, busy=1.0)
    assert rounds(pace, 3, begin=11) == [32, 32, 32], "twice as many may be enough"
    pace.stepped(15.0, waiting=-1, busy=1.0)
    assert rounds(pace, 2, begin=16) == [64, 64]


def test_a_backlog_is_halved_until_it_shrinks():
    pace = Pace(64)
    rounds(pace, 3)
    limits: list[int] = []
    for waiting in (3, 3, 3, 2, 1):
        pace.stepped(9.0, waiting=waiting, busy=1.0)
        limits.append(pace.limit)
    assert limits == [32, 32, 16, 16, 16]


def test_a_queue_at_the_engine_halves_it_once_until_it_can_have_shrunk():
    pace = Pace(64)
    rounds(pace, 3)
    for at in (10.0, 11.0, 12.0):
        pace.queue(at, running=16, waiting=48)
    assert pace.limit == 32
    assert rounds(pace, 2, begin=13) == [32, 32], "no growth while there is a queue"
    pace.queue(17.0, running=16, waiting=17)
    assert pace.limit == 16


@given(bound=st.integers(1, 256), told=st.lists(st.tuples(HARMS, st.integers(-1, 3), st.integers(0, 99)), max_size=300))
def test_whatever_it_is_told_it_stays_between_one_and_the_bound(bound: int, told: list[tuple[Harm | None, int, int]]):
    pace = Pace(bound)
    for n, (harm, waiting, queued) in enumerate(told):
        pace.ended(n + 1.0, started=float(n), full=queued % 2 == 0, harm=harm)
        pace.queue(n + 1.0, running=10, waiting=queued)
        if n % 7 == 0:
            pace.stepped(n + 1.0, waiting=waiting, busy=queued / 99)
        assert 1 <= pace.limit <= bound


@given(rollout_s=st.floats(0.2, 20), train_s=st.floats(1, 60), ahead=st.integers(0, 4), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_beside_a_trainer_it_costs_little_time_and_runs_no_more_than_it_needs(
    rollout_s: float, train_s: float, ahead: int, seed: int
):
    found = Simulation(Pace(64), rollout_s=rollout_s, train_s=train_s, ahead=ahead, seed=seed).run()
    free = Simulation(None, rollout_s=rollout_s, train_s=train_s, ahead=ahead, seed=seed).run()
    assert found.now <= 1.25 * free.now
    assert max(found.lags) <= ahead
    if ahead and train_s > 8 * rollout_s:
        assert sum(found.limits[-20:]) / 20 <= 32
    if ahead == 4 and 2 * rollout_s < train_s < 20 * rollout_s:
        assert sum(found.lags) <= 0.9 * sum(free.lags)
    if train_s < rollout_s:
        assert found.limits[-1] == 64


class Simulation:
    """A job of 50 iterations of 64 rollouts, each of which takes rollout_s to 1.3 rollout_s.

    pace: None runs 64 at once, always. lags: of each rollout, in versions, when it began. limits: after each step.
    """

    def __init__(self, pace: Pace | None, *, rollout_s: float, train_s: float, ahead: int, seed: int) -> None:
        self.pace, self.ahead, self.train_s = pace, ahead, train_s
        self.now, self.version, self.whole = 0.0, 0, 0
        self.lags: list[int] = []
        self.limits: list[int] = []
        self._chance = random.Random(seed)
        self._rollout_s = rollout_s
        self._unsent: dict[int, int] = {}
        self._ended: Counter[int] = Counter()
        self._running: list[tuple[float, float, int]] = []
        self._requested, self._step_ends = 0, math.inf
        self._busy = self._busy_at_step = self._stepped = 0.0

    def run(self) -> Simulation:
        while self.version < 50:
            self._begin()
            ends = self._running[0][0] if self._running else math.inf
            then = min(ends, self._step_ends)
            self._busy += (then - self.now) * bool(self._running)
            self.now = then
            if self._step_ends <= ends:
                self._step()
            else:
                self._end()
        return self

    @property
    def _limit(self) -> int:
        return self.pace.limit if self.pace else 64

    def _begin(self) -> None:
        while self._requested < min(50, self.version + 1 + self.ahead):
            self._requested += 1
            self._unsent[self._requested] = 64
        for iteration in sorted(self._unsent):
            while self._unsent[iteration] and len(self._running) < self._limit:
                self._unsent[iteration] -= 1
                seconds = self._rollout_s * (1 + 0.3 * self._chance.random())
                heapq.heappush(self._running, (self.now + seconds, self.now, iteration))
                self.lags.append(iteration - 1 - self.version)
        if self._step_ends == math.inf and self.whole > self.version:
            self._step_ends = self.now + self.train_s

    def _end(self) -> None:
        full = len(self._running) >= self._limit
        _, started, iteration = heapq.heappop(self._running)
        self._ended[iteration] += 1
        while self._ended[self.whole + 1] == 64:
            self.whole += 1
        if self.pace:
            self.pace.ended(self.now, started=started, full=full)

    def _step(self) -> None:
        self.version += 1
        self._step_ends = math.inf
        busy = (self._busy - self._busy_at_step) / (self.now - self._stepped)
        self._busy_at_step, self._stepped = self._busy, self.now
        if self.pace:
            self.pace.stepped(self.now, waiting=max(-1, self.whole - self.version - 1), busy=busy)
        self.limits.append(self._limit)

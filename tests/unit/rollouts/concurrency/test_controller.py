"""The concurrency controller: where it settles, what it reacts to, what it never does. Time is given: nothing waits."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from synth.rollouts.concurrency.controller import INITIAL_LIMIT, ConcurrencyController, Overload

OVERLOADS = st.sampled_from([None, None, None, Overload.REJECTED, Overload.TIMEOUT, Overload.STALE])


def rounds(controller: ConcurrencyController, count: int, *, begin: float = 0.0, bears: int = 10**9) -> list[int]:
    """Rounds of one second at a task app that answers 429 to whoever exceeds what it bears; the limit after each."""
    limits: list[int] = []
    for n in range(count):
        started, sent = begin + n, controller.limit
        for rollout in range(sent):
            overload = Overload.REJECTED if rollout >= bears else None
            controller.record_try(started + 0.9, started=started, full=True, overload=overload)
        limits.append(controller.limit)
    return limits


def test_without_overload_it_doubles_each_round_up_to_the_users_bound():
    controller = ConcurrencyController(64)
    assert (controller.limit, rounds(controller, 4)) == (INITIAL_LIMIT, [16, 32, 64, 64])
    assert ConcurrencyController(3).limit == 3


def test_a_limit_that_is_not_reached_does_not_grow():
    controller = ConcurrencyController(64)
    for _ in range(100):
        controller.record_try(1.0, started=0.0, full=False)
    assert controller.limit == INITIAL_LIMIT


def test_tries_that_began_together_are_one_cause_and_halve_once():
    controller = ConcurrencyController(64)
    rounds(controller, 3)
    for _ in range(40):
        controller.record_try(10.0, started=9.0, full=True, overload=Overload.REJECTED)
    assert (controller.limit, controller.halved, controller.cause, controller.rising) == (
        32,
        {Overload.REJECTED: 1},
        Overload.REJECTED,
        False,
    )
    controller.record_try(12.0, started=10.5, full=True, overload=Overload.TIMEOUT)
    assert controller.limit == 16


@given(bears=st.integers(1, 64), bound=st.integers(1, 128))
def test_at_an_app_that_bears_so_many_it_settles_near_them(bears: int, bound: int):
    controller = ConcurrencyController(bound)
    settled = rounds(controller, 80, bears=bears)[40:]
    most = min(bears, bound)
    step = max(1, bound / 16)
    assert max(settled) <= most + step + 1
    assert sum(settled) / len(settled) >= 0.5 * most - 1


def test_after_a_backlog_what_was_borne_is_back_within_a_few_steps():
    controller = ConcurrencyController(64)
    rounds(controller, 3)
    controller.record_step(4.0, waiting=0, busy=0.2)
    controller.record_step(5.0, waiting=0, busy=0.3)
    assert (controller.limit, controller.halved[Overload.BACKLOG]) == (16, 2)
    assert rounds(controller, 3, begin=6) == [16, 16, 16], "a trainer that has a batch to go on with needs no more"
    controller.record_step(10.0, waiting=-1, busy=1.0)
    assert rounds(controller, 3, begin=11) == [32, 32, 32], "twice as many may be enough"
    controller.record_step(15.0, waiting=-1, busy=1.0)
    assert rounds(controller, 2, begin=16) == [64, 64]


def test_a_backlog_is_halved_until_it_shrinks():
    controller = ConcurrencyController(64)
    rounds(controller, 3)
    limits: list[int] = []
    for waiting in (3, 3, 3, 2, 1):
        controller.record_step(9.0, waiting=waiting, busy=1.0)
        limits.append(controller.limit)
    assert limits == [32, 32, 16, 16, 16]


def test_a_queue_at_the_engine_halves_it_once_until_it_can_have_shrunk():
    controller = ConcurrencyController(64)
    rounds(controller, 3)
    for at in (10.0, 11.0, 12.0):
        controller.record_queue(at, running=16, waiting=48)
    assert controller.limit == 32
    assert rounds(controller, 2, begin=13) == [32, 32], "no growth while there is a queue"
    controller.record_queue(17.0, running=16, waiting=17)
    assert controller.limit == 16


@given(
    bound=st.integers(1, 256), told=st.lists(st.tuples(OVERLOADS, st.integers(-1, 3), st.integers(0, 99)), max_size=300)
)
def test_whatever_is_recorded_it_stays_between_one_and_the_bound(
    bound: int, told: list[tuple[Overload | None, int, int]]
):
    controller = ConcurrencyController(bound)
    for n, (overload, waiting, queued) in enumerate(told):
        controller.record_try(n + 1.0, started=float(n), full=queued % 2 == 0, overload=overload)
        controller.record_queue(n + 1.0, running=10, waiting=queued)
        if n % 7 == 0:
            controller.record_step(n + 1.0, waiting=waiting, busy=queued / 99)
        assert 1 <= controller.limit <= bound


@given(rollout_s=st.floats(0.2, 20), train_s=st.floats(1, 60), ahead=st.integers(0, 4), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_beside_a_trainer_it_costs_little_time_and_runs_no_more_than_it_needs(
    rollout_s: float, train_s: float, ahead: int, seed: int
):
    found = Simulation(ConcurrencyController(64), rollout_s=rollout_s, train_s=train_s, ahead=ahead, seed=seed).run()
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

    controller: None always runs 64 at once. lags: of each rollout when it began, in versions. limits: after each step.
    """

    def __init__(
        self, controller: ConcurrencyController | None, *, rollout_s: float, train_s: float, ahead: int, seed: int
    ) -> None:
        self.controller, self.ahead, self.train_s = controller, ahead, train_s
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
        return self.controller.limit if self.controller else 64

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
        if self.controller:
            self.controller.record_try(self.now, started=started, full=full)

    def _step(self) -> None:
        self.version += 1
        self._step_ends = math.inf
        busy = (self._busy - self._busy_at_step) / (self.now - self._stepped)
        self._busy_at_step, self._stepped = self._busy, self.now
        if self.controller:
            self.controller.record_step(self.now, waiting=max(-1, self.whole - self.version - 1), busy=busy)
        self.limits.append(self._limit)

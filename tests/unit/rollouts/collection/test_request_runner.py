"""Refills and deadlines: which groups of a request are run, and what a batch is made of."""

from __future__ import annotations

import asyncio
import random

import pytest

from synth.errors import Problem
from synth.rollouts.collection.batching import CreditRules, ScoredRollout, build_batch
from synth.rollouts.collection.collector import Collector
from synth.rollouts.collection.deadline import Deadline
from synth.rollouts.collection.types import (
    AbandonedRollout,
    CollectRequest,
    CompletedRollout,
    CutOff,
    DurableRollout,
    EnvironmentBroken,
    PriorProgress,
    RequestResult,
    RolloutSpec,
    TryResult,
)
from synth.rollouts.concurrency.job_concurrency import JobConcurrency
from synth.rollouts.rewards.scoring import EnvironmentFailed
from tests.unit.rollouts.collection.test_collector import RECORD, durable, paid

NO_PRIOR_PROGRESS = PriorProgress({}, {})

REFILLED = CollectRequest(
    iteration=2, mode="train", seeds=[0, 1, 2], group_size=2, oldest_version=0, refill_seeds=[3, 4, 5, 6, 7, 8]
)


class App:
    """Pays by seed and index in the group; rollouts of `hang` never end, `fail` are the environment's errors, those of
    `lose` lose their replica and wait for another.

    chance: shuffles the order in which rollouts end.
    """

    def __init__(
        self,
        *,
        flat: set[int] | None = None,
        hang: set[int] | None = None,
        fail: set[int] | None = None,
        lose: set[int] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.flat, self.hang, self.fail = flat or set(), hang or set(), fail or set()
        self.lose, self.lost, self.served_again = lose or set(), asyncio.Event(), asyncio.Event()
        self.chance = chance or random.Random(0)
        self.played: list[int] = []
        self.closed: list[int] = []
        self.completed: dict[int, ScoredRollout] = {}
        self.abandoned: dict[int, AbandonedRollout] = {}

    async def run_try(
        self, request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff
    ) -> TryResult:
        self.played.append(spec.index)
        try:
            deadline.mark_at_app(spec.index)
            if spec.index in self.lose:
                deadline.mark_away(spec.index)
                self.lost.set()
                await self.served_again.wait()
                deadline.mark_at_app(spec.index)
            for _ in range(self.chance.randint(1, 9)):
                await asyncio.sleep(0)
            if spec.index in self.hang:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.closed.append(spec.index)
            raise
        if spec.index in self.fail:
            return TryResult(EnvironmentFailed(Problem(what="no")), [])
        reward = 1.0 if spec.seed in self.flat else float(spec.index % request.group_size)
        return TryResult(paid(reward), [RECORD])

    async def complete(self, request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        await asyncio.sleep(0)
        made = durable(completed)
        self.completed[completed.spec.index] = made.rollout
        return made

    async def abandon(self, request: CollectRequest, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        self.abandoned[spec.index] = abandoned

    async def collect(
        self, request: CollectRequest, prior: PriorProgress = NO_PRIOR_PROGRESS, *, group_timeout_s: float | None = None
    ) -> RequestResult | EnvironmentBroken:
        collector = Collector(
            "job_x",
            concurrency=JobConcurrency(8),
            max_tries=1,
            run_try=self.run_try,
            complete=self.complete,
            abandon=self.abandon,
            progress=lambda done, of: None,
            group_timeout_s=group_timeout_s,
        )
        async with asyncio.timeout(30):
            return await collector.collect(request, prior)


def batch_counts(request: CollectRequest, result: RequestResult) -> tuple[int, int, int]:
    """Groups kept, groups dropped, sequences of the batch."""
    batch = build_batch(
        result.rollouts,
        job_id="job_x",
        iteration=request.iteration,
        temperature=1.0,
        groups=result.groups,
        group_size=request.group_size,
        credit=CreditRules(),
        values={},
        late=result.late,
    )
    return batch.meta.groups_kept, batch.meta.groups_dropped, batch.sequences


@pytest.mark.parametrize("order", range(8))
async def test_groups_without_a_signal_are_refilled_and_the_same_ones_whatever_the_order(order: int):
    app = App(flat={1, 2, 4, 7}, chance=random.Random(order))
    result = await app.collect(REFILLED)
    assert isinstance(result, RequestResult)
    assert sorted(app.played) == list(range(12)), "two dropped, and one of their refills: seeds 3, 4 and 5"
    assert (result.groups, result.num_rollouts) == (6, 12)
    assert {r.seed for r in result.rollouts} == {0, 1, 2, 3, 4, 5}
    assert batch_counts(REFILLED, result) == (3, 3, 6)


async def test_refills_end_at_three_times_the_batch_and_the_batch_is_smaller():
    app = App(flat=set(range(1, 9)))
    result = await app.collect(REFILLED)
    assert isinstance(result, RequestResult)
    assert (result.groups, batch_counts(REFILLED, result)) == (9, (1, 8, 2))


async def test_without_refill_seeds_nothing_is_refilled():
    request = CollectRequest(iteration=1, mode="train", seeds=[1, 2], group_size=2, oldest_version=0)
    result = await App(flat={1, 2}).collect(request)
    assert isinstance(result, RequestResult)
    assert (result.groups, len(result.rollouts)) == (2, 4)


@pytest.mark.parametrize("known", range(0, 12, 2))
async def test_a_collector_that_takes_over_plays_what_is_missing_and_no_refill_twice(known: int):
    first = App(flat={1, 2, 4}, chance=random.Random(known))
    whole = await first.collect(REFILLED)
    log = dict(list(first.completed.items())[:known])
    second = App(flat={1, 2, 4})
    again = await second.collect(REFILLED, PriorProgress(log, {}))
    assert isinstance(whole, RequestResult)
    assert isinstance(again, RequestResult)
    assert sorted(second.played) == sorted(set(first.played) - set(log))
    assert {r.rollout_id for r in again.rollouts} == {r.rollout_id for r in whole.rollouts}


async def test_a_hung_rollout_is_cut_off_and_its_group_goes_with_the_others():
    request = CollectRequest(iteration=1, mode="train", seeds=[1, 2], group_size=4, oldest_version=0)
    app = App(hang={1})
    result = await app.collect(request, group_timeout_s=0.05)
    assert isinstance(result, RequestResult)
    assert (result.late, result.failed, app.closed) == ({0: 1}, 0, [1])
    assert app.abandoned[1].late
    assert batch_counts(request, result) == (2, 0, 7)

    successor = App(hang={1})
    again = await successor.collect(
        request, PriorProgress(dict(app.completed), dict(app.abandoned)), group_timeout_s=0.05
    )
    assert isinstance(again, RequestResult)
    assert (successor.played, again.late, batch_counts(request, again)) == ([], {0: 1}, (2, 0, 7))


async def test_time_without_a_replica_is_not_the_groups(monkeypatch: pytest.MonkeyPatch):
    request = CollectRequest(iteration=1, mode="train", seeds=[1], group_size=4, oldest_version=0)
    loop, passed = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)
    app = App(hang={1}, lose={2})
    collectors = asyncio.create_task(app.collect(request, group_timeout_s=9.0))
    await app.lost.wait()
    passed += 10
    await settle()
    assert (app.abandoned, collectors.done()) == ({}, False)
    app.served_again.set()
    await settle()
    passed += 10
    result = await collectors
    assert isinstance(result, RequestResult)
    assert (result.late, batch_counts(request, result)) == ({0: 1}, (1, 0, 3))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_group_of_which_one_rollout_is_done_in_time_is_dropped_and_refilled():
    app = App(hang={1})
    result = await app.collect(REFILLED, group_timeout_s=0.05)
    assert isinstance(result, RequestResult)
    assert (result.groups, batch_counts(REFILLED, result)) == (4, (3, 1, 6))


async def test_a_group_that_lacks_a_rollout_for_a_failure_is_dropped_even_where_others_are_late():
    request = CollectRequest(iteration=1, mode="train", seeds=[1, 2], group_size=4, oldest_version=0)
    result = await App(hang={1}, fail={2}).collect(request, group_timeout_s=0.05)
    assert isinstance(result, RequestResult)
    assert (result.failed, batch_counts(request, result)) == (1, (1, 1, 4))


async def test_an_environment_in_which_most_rollouts_are_late_stops_the_job_and_says_so():
    request = CollectRequest(iteration=1, mode="train", seeds=[1, 2], group_size=4, oldest_version=0)
    broken = await App(hang={0, 1, 2, 4, 5, 6}).collect(request, group_timeout_s=0.05)
    assert isinstance(broken, EnvironmentBroken)
    assert "group_timeout_s" in broken.problem.text()


async def test_earlier_iterations_are_never_overtaken_by_later_ones():
    app = App(flat={1, 2})
    starts: list[int] = []

    async def run_try(request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff) -> TryResult:
        starts.append(request.iteration)
        return await app.run_try(request, spec, deadline, cut_off)

    collector = Collector(
        "job_x",
        concurrency=JobConcurrency(1),
        max_tries=1,
        run_try=run_try,
        complete=app.complete,
        abandon=app.abandon,
        progress=lambda done, of: None,
    )
    later = CollectRequest(iteration=3, mode="train", seeds=[50, 51], group_size=2, oldest_version=0)
    async with asyncio.timeout(30):
        await asyncio.gather(
            collector.collect(REFILLED, NO_PRIOR_PROGRESS, priority=1),
            collector.collect(later, NO_PRIOR_PROGRESS, priority=2),
        )
    # The only slot may be given away in the moment in which a refill is decided.
    assert starts[:6] == [2] * 6
    assert starts.count(2) == 10
    assert starts.index(3, starts.index(3) + 2) > max(i for i, k in enumerate(starts) if k == 2)

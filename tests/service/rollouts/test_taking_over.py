"""A collector that dies under way, and the one that goes on with what is in the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.fencing import start_collection
from synth.bus.replay import replay
from synth.errors import Fenced, Problem
from synth.events import EvalCompleted, RolloutCompleted, RolloutFailed
from synth.ids import RolloutId, new_org_id
from synth.judging.contract import JudgeUsage, Review, RolloutReview
from synth.judging.settings import JudgeModel, Judging
from synth.methods.rewards import RewardSettings, RewardWeights
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
    RequestResult,
    RolloutSpec,
    TryResult,
)
from synth.rollouts.concurrency.job_concurrency import JobConcurrency
from synth.rollouts.event_log import RolloutLog
from tests.unit.rollouts.collection.test_request_runner import App, batch_counts

ORG = new_org_id()
#: Seeds 1, 2 and 4 are flat: refills 3, 4 and 5 stand in for 1, 2 and 4. Seed 0 has one rollout too many that hangs.
REQUEST = CollectRequest(
    iteration=2, mode="train", seeds=[0, 1, 2], group_size=3, oldest_version=0, refill_seeds=[3, 4, 5, 6, 7, 8]
)
FLAT = {1, 2, 4}
LATE = 1
LAST = 17


async def open_log(bus: Connection, blobs: BlobStore, job: str, rewards: RewardSettings | None = None) -> RolloutLog:
    """The log of the job's next collector."""
    fence = await start_collection(bus, ORG, job, worker="rollouts-0")
    return RolloutLog(bus, blobs, fence, rewards=rewards or RewardSettings())


class DiesAt(App):
    """An app whose collector is killed when a rollout begins."""

    def __init__(self, index: int | None = None) -> None:
        super().__init__(flat=FLAT, hang={LATE} | ({index} if index is not None else set()))
        self.reached, self.durable = asyncio.Event(), asyncio.Event()
        self._index = index

    async def run_try(
        self, request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff
    ) -> TryResult:
        if spec.index == self._index:
            self.reached.set()
        return await super().run_try(request, spec, deadline, cut_off)


@pytest.mark.parametrize("dies_at", [8, 10, LAST])
async def test_its_successor_plays_what_is_missing_and_comes_to_the_same_batch(bus_as, blobs: BlobStore, dies_at: int):
    job = f"job_taking_over_{dies_at}"
    bus = await bus_as("rollouts")

    def collector(app: DiesAt, log: RolloutLog) -> Collector:
        async def complete(request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
            durable = await log.complete(request, completed)
            app.durable.set()
            return durable

        return Collector(
            job,
            concurrency=JobConcurrency(4),
            max_tries=1,
            run_try=app.run_try,
            complete=complete,
            abandon=log.abandon,
            progress=lambda done, of: None,
            group_timeout_s=1.0 if app.hang == {LATE} else 60.0,
        )

    async def logged() -> set[int]:
        events = await replay(bus, [f"rollout.*.{ORG}.{job}"])
        indices = [r.event.index for r in events if isinstance(r.event, RolloutCompleted | RolloutFailed)]
        assert len(set(indices)) == len(indices)
        return set(indices)

    first, log = DiesAt(dies_at), await open_log(bus, blobs, job)
    dying = asyncio.create_task(collector(first, log).collect(REQUEST, await log.prior_progress(REQUEST)))
    async with asyncio.timeout(20):
        await first.reached.wait()
        await first.durable.wait()
    dying.cancel()
    await asyncio.wait([dying])
    second, log = DiesAt(), await open_log(bus, blobs, job)
    await log.read()
    prior_progress = await log.prior_progress(REQUEST)
    known = {*prior_progress.done, *prior_progress.abandoned}
    assert known
    assert not known & {LATE, dies_at}
    async with asyncio.timeout(20):
        result = await collector(second, log).collect(REQUEST, prior_progress)
    assert isinstance(result, RequestResult)
    assert await logged() == set(range(18))
    assert sorted(second.played) == sorted(set(range(18)) - known)
    assert (result.groups, result.late, batch_counts(REQUEST, result)) == (6, {0: 1}, (3, 3, 8))

    # And a third one, which finds all of it.
    third, log = DiesAt(), await open_log(bus, blobs, job)
    await log.read()
    again = await collector(third, log).collect(REQUEST, await log.prior_progress(REQUEST))
    assert isinstance(again, RequestResult)
    assert (third.played, again.groups, again.late) == ([], 6, {0: 1})
    assert batch_counts(REQUEST, again) == batch_counts(REQUEST, result)


async def test_a_collector_that_was_replaced_appends_nothing_that_counts(bus_as, blobs: BlobStore):
    job, bus = "job_replaced", await bus_as("rollouts")
    request = CollectRequest(iteration=1, mode="train", seeds=[1], group_size=2, oldest_version=0)
    log = await open_log(bus, blobs, job)
    played: list[CompletedRollout] = []

    async def complete(request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        played.append(completed)
        return await log.complete(request, completed)

    app = App()
    app.complete = complete
    result = await app.collect(request)
    assert isinstance(result, RequestResult)
    durable = await log.complete(request, played[0])
    batch = build_batch(
        result.rollouts,
        job_id=job,
        iteration=1,
        temperature=1.0,
        groups=1,
        group_size=2,
        credit=CreditRules(),
        values={},
        late={},
    )
    later = replace(played[1], spec=replace(played[1].spec, rollout_id=RolloutId(f"{job}_t1_9"), index=9))
    successor = await open_log(bus, blobs, job)
    before = await replay(bus, [f"*.*.{ORG}.{job}"])
    late = AbandonedRollout(Problem(what="late"), 1, late=True)
    evaluation = EvalCompleted(model="m", instances=1, values={})
    review = RolloutReview(rollout_id=durable.rollout.rollout_id, outcome=Review(total=1.0))
    broken = EnvironmentBroken(Problem(what="the app is down"))
    for append in (
        lambda: log.complete(request, later),
        lambda: log.abandon(request, later.spec, late),
        lambda: log.judged(request, durable, review, JudgeUsage()),
        lambda: log.publish_batch(batch, {}),
        lambda: log.publish_evaluation(evaluation),
        lambda: log.publish_blocked(1, broken),
    ):
        with pytest.raises(Fenced):
            await append()
    assert len(await replay(bus, [f"*.*.{ORG}.{job}"])) == len(before)
    await successor.read()
    assert set((await successor.prior_progress(request)).done) == {0, 1}
    await successor.publish_batch(batch, {})
    # The same batch under the same name: even so it is not the replaced one's.
    with pytest.raises(Fenced):
        await log.publish_batch(batch, {})


async def test_rollouts_that_wait_for_their_judges_are_judged_by_the_successor_and_not_played_again(
    bus_as, blobs: BlobStore
):
    job, bus = "job_judged", await bus_as("rollouts")
    rewards = RewardSettings(
        weights=RewardWeights(env=0.0, outcome=1.0), scores="judges", judging=Judging(judges=[JudgeModel(model="m")])
    )
    request = CollectRequest(iteration=1, mode="train", seeds=[1, 2], group_size=2, oldest_version=0)

    class Judge:
        """Scores by index, in the log; hangs from the third rollout on."""

        by_group = False

        def __init__(self, log: RolloutLog, *, hangs: bool) -> None:
            self._log, self._hangs = log, hangs
            self.asked: list[int] = []
            self._turn, self.stuck = asyncio.Lock(), asyncio.Event()

        async def judge(
            self, request: CollectRequest, rollouts: list[DurableRollout]
        ) -> list[ScoredRollout | AbandonedRollout]:
            [durable] = rollouts
            async with self._turn:
                if self._hangs and len(self.asked) == 2:
                    self.stuck.set()
                    await asyncio.Event().wait()
                self.asked.append(durable.index)
                review = RolloutReview(rollout_id=durable.rollout.rollout_id, outcome=Review(total=durable.index / 8))
                judged = await self._log.judged(request, durable, review, JudgeUsage(calls=1))
            assert judged is not None
            return [judged]

    def collector(app: App, log: RolloutLog, judge: Judge) -> Collector:
        return Collector(
            job,
            concurrency=JobConcurrency(1),
            max_tries=1,
            run_try=app.run_try,
            complete=log.complete,
            abandon=log.abandon,
            progress=lambda done, of: None,
            judge=judge,
        )

    first, log = App(), await open_log(bus, blobs, job, rewards)
    stuck = Judge(log, hangs=True)
    dying = asyncio.create_task(collector(first, log, stuck).collect(request, await log.prior_progress(request)))
    async with asyncio.timeout(20):
        await stuck.stuck.wait()
    dying.cancel()
    await asyncio.wait([dying])
    second, log = App(), await open_log(bus, blobs, job, rewards)
    await log.read()
    prior = await log.prior_progress(request)
    assert set(prior.done) == set(stuck.asked)
    assert prior.unjudged
    assert log.judge_usage.calls == len(prior.done)
    judge = Judge(log, hangs=False)
    async with asyncio.timeout(20):
        result = await collector(second, log, judge).collect(request, prior)
    assert isinstance(result, RequestResult)
    assert sorted(judge.asked) == sorted({0, 1, 2, 3} - set(prior.done))
    assert not set(second.played) & (set(prior.done) | set(prior.unjudged))
    assert sorted(r.reward for r in result.rollouts) == [0.0, 0.125, 0.25, 0.375]


async def test_a_ranked_group_is_judged_whole_and_a_review_of_another_transcript_does_not_count(
    bus_as, blobs: BlobStore
):
    bus = await bus_as("rollouts")
    request = CollectRequest(iteration=1, mode="train", seeds=[1, 2], group_size=2, oldest_version=0)

    async def unjudged(job: str, *, ranking: bool, judged: list[int], swap: bool = False) -> set[int]:
        """Which rollouts a successor has to judge, where these were judged before it. swap: as if another was read."""
        judging = Judging(judges=[JudgeModel(model="m")], ranking=ranking)
        rewards = RewardSettings(weights=RewardWeights(outcome=1.0), scores="judges", judging=judging)
        log = await open_log(bus, blobs, job, rewards)
        durables: dict[int, DurableRollout] = {}

        async def complete(request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
            told = replace(completed, transcript=f"rollout {completed.spec.index}".encode())
            durables[completed.spec.index] = await log.complete(request, told)
            return durables[completed.spec.index]

        app = App()
        app.complete = complete
        await app.collect(request)
        for index in judged:
            read = replace(durables[index], transcript=durables[index - 1].transcript) if swap else durables[index]
            review = RolloutReview(rollout_id=read.rollout.rollout_id, outcome=Review(total=1.0))
            await log.judged(request, read, review, JudgeUsage(calls=1))
        again = await open_log(bus, blobs, job, rewards)
        await again.read()
        prior = await again.prior_progress(request)
        assert set(prior.done) | set(prior.unjudged) == {0, 1, 2, 3}
        return set(prior.unjudged)

    assert await unjudged("job_each", ranking=False, judged=[0, 2, 3]) == {1}
    assert await unjudged("job_ranked", ranking=True, judged=[0, 2, 3]) == {0, 1}
    assert await unjudged("job_swapped", ranking=False, judged=[1, 3], swap=True) == {0, 1, 2, 3}

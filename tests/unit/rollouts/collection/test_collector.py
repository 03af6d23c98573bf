"""The collector: its bound, its retries, what it never runs again, and when the environment counts as broken."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from structlog.testing import capture_logs

from synth.errors import Problem, Transient
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.collector import Collector
from synth.rollouts.collection.deadline import Deadline
from synth.rollouts.collection.policy_versions import PolicyVersions
from synth.rollouts.collection.types import (
    AbandonedRollout,
    CollectRequest,
    CompletedRollout,
    CutOff,
    DurableRollout,
    EnvironmentBroken,
    PriorProgress,
    RolloutSpec,
    TryResult,
)
from synth.rollouts.concurrency.job_concurrency import JobConcurrency
from synth.rollouts.metrics import ConcurrencyMetrics
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded
from synth.trajectories import CompletionRecord, RewardSources

NO_PRIOR_PROGRESS = PriorProgress({}, {})

RECORD = CompletionRecord(
    prompt_ids=np.array([1], np.int32),
    sampled_ids=np.array([2], np.int32),
    logprobs=np.array([-1.0], np.float32),
    versions=np.array([0], np.int32),
    sampled=np.array([True]),
    finish_reason="stop",
)
REQUEST = CollectRequest(iteration=3, mode="train", seeds=[10, 11, 12], group_size=2, oldest_version=0)


def paid(reward: float) -> Rewarded:
    """The score of a rollout of one turn."""
    return Rewarded(RewardSources([reward]), "ok")


def durable(completed: CompletedRollout) -> DurableRollout:
    """The rollout, as if it were in the log."""
    spec, sources = completed.spec, completed.score.sources
    rollout = ScoredRollout(
        spec.rollout_id,
        spec.group,
        spec.seed,
        sum(sources.environment),
        sources.environment,
        completed.branches,
        completed.seconds,
        completed.tries,
    )
    return DurableRollout(spec.index, rollout, sources, None)


class App:
    """A task app whose answers are scripted by rollout index and try."""

    def __init__(self, *, fails: dict[int, int] | None = None) -> None:
        self.fails = fails or {}
        self.running = self.most = 0
        self.tries: list[int] = []
        self.completed: list[CompletedRollout] = []
        self.abandoned: list[int] = []

    async def run_try(
        self, request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff
    ) -> TryResult:
        self.running += 1
        self.most = max(self.most, self.running)
        self.tries.append(spec.index)
        tries = self.tries.count(spec.index)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        if tries <= self.fails.get(spec.index, 0):
            failed = EnvironmentFailed(Problem(what=f"try {tries} failed"))
            return TryResult(failed, [], transcript=f"try {tries}".encode())
        return TryResult(paid(float(spec.index)), [RECORD], transcript=f"try {tries}".encode())

    async def complete(self, request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        self.completed.append(completed)
        return durable(completed)

    async def abandon(self, request: CollectRequest, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        self.abandoned.append(spec.index)

    def collector(self, *, limit: int = 4, max_tries: int = 2) -> Collector:
        return Collector(
            "job_x",
            concurrency=JobConcurrency(limit),
            max_tries=max_tries,
            run_try=self.run_try,
            complete=self.complete,
            abandon=self.abandon,
            progress=lambda done, of: None,
        )


async def test_every_rollout_of_a_request_is_played_on_its_groups_seed():
    app = App()
    result = await app.collector().collect(REQUEST, NO_PRIOR_PROGRESS)
    assert not isinstance(result, EnvironmentBroken)
    assert result.failed == 0
    assert sorted((c.rollout_id, c.seed) for c in result.rollouts) == [(f"job_x_t3_{i}", 10 + i // 2) for i in range(6)]
    assert len(app.completed) == 6


async def test_iterations_that_overlap_share_one_bound():
    app = App()
    collector = app.collector(limit=3)
    later = CollectRequest(iteration=4, mode="train", seeds=[1, 2], group_size=4, oldest_version=1)
    await asyncio.gather(collector.collect(REQUEST, NO_PRIOR_PROGRESS), collector.collect(later, NO_PRIOR_PROGRESS))
    assert app.most == 3


async def test_what_is_in_the_log_is_not_played_again():
    app = App()
    done = {i: ScoredRollout(f"job_x_t3_{i}", i // 2, 10, 1.0, [1.0], [], 0.0, 1) for i in (0, 1, 5)}
    result = await app.collector().collect(
        REQUEST, PriorProgress(done, {2: AbandonedRollout(Problem(what="given up"), 2)})
    )
    assert not isinstance(result, EnvironmentBroken)
    assert sorted(app.tries) == [3, 4]
    assert (len(result.rollouts), result.failed) == (5, 1)


async def test_an_environments_error_is_tried_again_within_its_budget():
    app = App(fails={1: 1, 4: 2})
    result = await app.collector(max_tries=2).collect(REQUEST, NO_PRIOR_PROGRESS)
    assert not isinstance(result, EnvironmentBroken)
    assert (len(result.rollouts), result.failed, app.abandoned) == (5, 1, [4])
    assert next(c.tries for c in result.rollouts if c.rollout_id.endswith("_1")) == 2


async def test_an_environment_that_fails_too_often_stops_the_iteration_with_its_cause():
    app = App(fails=dict.fromkeys(range(6), 9))
    result = await app.collector(max_tries=1).collect(REQUEST, NO_PRIOR_PROGRESS)
    assert isinstance(result, EnvironmentBroken)
    assert "try 1 failed" in result.problem.text()


async def test_an_error_that_is_nobodys_fault_reaches_the_owner_of_the_task():
    app = App()

    async def gone(request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff) -> TryResult:
        raise Transient("no replica")

    app.run_try = gone
    with pytest.raises(Transient, match="no replica"):
        await app.collector().collect(REQUEST, NO_PRIOR_PROGRESS)


async def test_a_request_without_any_completed_rollout_is_broken_however_small_it_is():
    app = App(fails={0: 9})
    one = CollectRequest(iteration=1, mode="eval", seeds=[7], group_size=1, oldest_version=0)
    assert isinstance(await app.collector(max_tries=1).collect(one, NO_PRIOR_PROGRESS), EnvironmentBroken)


async def test_a_wait_for_a_policy_version_ends_when_it_is_served_and_not_before():
    versions = PolicyVersions()
    waiting = asyncio.create_task(versions.wait_at_least(2, timeout=5))
    await versions.record_loaded(1, "a")
    assert not waiting.done()
    await versions.record_loaded(3, "b")
    await waiting
    assert [versions.serves_at_least(replica, 2) for replica in ("a", "b", "c")] == [False, True, False]
    with pytest.raises(Transient, match="version 9"):
        await versions.wait_at_least(9, timeout=0.01)


async def test_an_overload_halves_the_limit_and_is_logged_and_measured():
    app = App()
    collector = app.collector(limit=16)
    # What version 0 samples is too old for an iteration that takes 1 and later.
    late = CollectRequest(iteration=4, mode="train", seeds=list(range(32)), group_size=2, oldest_version=1)
    with capture_logs() as lines:
        await collector.collect(late, NO_PRIOR_PROGRESS)
    turns = [(line["rising"], line["cause"]) for line in lines if line["event"] == "concurrency turns"]
    assert turns[0] == (False, "stale")
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in ConcurrencyMetrics({"job_x": collector}).collect()
        for sample in metric.samples
    }
    assert shown["synth_rollouts_limit", "job_x"] == collector.concurrency.limit < 16
    assert shown["synth_rollouts_running", "job_x"] == 0
    assert shown["synth_rollouts_halved_total", "job_x", "stale"] >= 1


async def test_a_rollout_keeps_the_transcript_of_its_last_try_and_why_the_others_failed():
    app = App(fails={1: 1, 4: 3})
    given_up: list[AbandonedRollout] = []

    async def abandon(request: CollectRequest, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        given_up.append(abandoned)

    app.abandon = abandon
    await app.collector(max_tries=3).collect(REQUEST, NO_PRIOR_PROGRESS)
    [again] = [c for c in app.completed if c.spec.index == 1]
    assert ([p.what for p in again.failures], again.transcript) == (["try 1 failed"], b"try 2")
    [failed] = given_up
    assert ([p.what for p in failed.failures], failed.problem.what) == (
        ["try 1 failed", "try 2 failed"],
        "try 3 failed",
    )
    assert failed.transcript == b"try 3"


async def test_a_rollout_that_is_late_keeps_what_its_try_left():
    app = App()
    late: list[AbandonedRollout] = []

    async def hang(request: CollectRequest, spec: RolloutSpec, deadline: Deadline, cut_off: CutOff) -> TryResult:
        deadline.mark_at_app(spec.index)
        if spec.index != 1:
            return TryResult(paid(float(spec.index)), [RECORD])
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.transcript = b"what was said"
        raise AssertionError("it is cancelled")

    async def abandon(request: CollectRequest, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        late.append(abandoned)

    app.run_try, app.abandon = hang, abandon
    collector = Collector(
        "job_x",
        concurrency=JobConcurrency(9),
        max_tries=1,
        run_try=app.run_try,
        complete=app.complete,
        abandon=app.abandon,
        progress=lambda done, of: None,
        group_timeout_s=0.05,
    )
    one = CollectRequest(iteration=3, mode="train", seeds=[10], group_size=3, oldest_version=0)
    await collector.collect(one, NO_PRIOR_PROGRESS)
    assert [(a.late, a.tries, a.transcript) for a in late] == [(True, 1, b"what was said")]

"""Collects one job's rollouts: how many at once, what to try again, when a request is complete.

Invariants. At most `bound` rollouts of a job are at its task app at any time, whatever the iterations they belong to.
A rollout is durable (`keep`) before it counts. A rollout that is already in the log is never run again. Which rollouts
run is decided by the request and by what came of its groups, never by the clock. Nothing here knows HTTP or the bus:
what a try is, and where its result is kept, are given.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import time
from collections.abc import Callable

from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.request_runner import Moved, RequestRunner
from synth.rollouts.collection.scoring import Rewarded
from synth.rollouts.collection.types import (
    Abandon,
    AbandonedRollout,
    CollectRequest,
    Complete,
    CompletedRollout,
    EnvironmentBroken,
    PriorProgress,
    RequestResult,
    RolloutSpec,
    RunTry,
    TryResult,
)
from synth.rollouts.concurrency.controller import ConcurrencyController, Overload
from synth.rollouts.concurrency.limiter import Priority, PriorityLimiter
from synth.runtime import logs
from synth.trajectories import CompletionRecord, branches_of

log = logs.get("collector")


class Collector:
    """Runs the requests of one job within one bound on concurrency.

    pace: how many at once, which its owner tells of the trainer's steps. places: where they run.
    """

    def __init__(
        self,
        job_id: str,
        *,
        bound: int,
        max_tries: int,
        run_try: RunTry,
        complete: Complete,
        abandon: Abandon,
        progress: Callable[[int, int], None],
        group_timeout_s: float | None = None,
        queue: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """bound: rollouts at the task app at once, at most. max_tries: of one rollout, for errors of the environment.

        group_timeout_s: while all rollouts of a group are under way; None: as long as they take. queue: requests
        that run in the engines that serve the job, and that wait there.
        """
        self.controller = ConcurrencyController(bound)
        self.limiter = PriorityLimiter(self.controller.limit)
        self._job_id = job_id
        self._max_tries = max_tries
        self._run_try = run_try
        self._complete = complete
        self._abandon = abandon
        self._progress = progress
        self._group_timeout_s = group_timeout_s
        self._queue = queue
        self._rising = True
        self.busy = 0
        """Requests that are being collected now."""

    async def collect(
        self, request: CollectRequest, prior: PriorProgress, *, priority: int = 0
    ) -> RequestResult | EnvironmentBroken:
        """Run what is missing of a request. turn: its place among the job's requests; the earlier one goes first."""

        async def play(spec: RolloutSpec, moved: Moved) -> CompletedRollout | AbandonedRollout:
            return await self._play_once(request, spec, (priority, spec.index), moved)

        collectors = RequestRunner(
            self._job_id,
            request,
            prior,
            play=play,
            complete=self._complete,
            abandon=self._abandon,
            progress=self._progress,
            # A group of one has no others to go on with.
            group_timeout_s=self._group_timeout_s if request.group_size > 1 else None,
        )
        self.busy += 1
        try:
            return await collectors.run()
        finally:
            self.busy -= 1

    def record_step(self, waiting: int, busy: float) -> None:
        """The trainer has made a step; what is told as in `Pace.stepped`."""
        self.controller.record_step(time.monotonic(), waiting=waiting, busy=busy)
        self._follow_controller()

    async def _play_once(
        self, request: CollectRequest, spec: RolloutSpec, order: Priority, moved: Moved
    ) -> CompletedRollout | AbandonedRollout:
        """One rollout, tried until it counts or its budget is spent. Between its tries it holds no place."""
        first = math.inf
        for tries in itertools.count(1):
            async with self.limiter.acquire(order):
                began = time.monotonic()
                first = min(first, began)
                result = await self._run_try(request, spec, tries, functools.partial(moved, tries))
                self._ended(request, result, began)
            score = result.score
            if isinstance(score, Rewarded):
                rollout = ScoredRollout(
                    rollout_id=spec.rollout_id,
                    group=spec.group,
                    seed=spec.seed,
                    reward=score.reward,
                    branches=branches_of(result.records),
                    seconds=time.monotonic() - first,
                    tries=tries,
                )
                return CompletedRollout(spec, rollout, score, len(result.records))
            if tries >= self._max_tries:
                return AbandonedRollout(score.problem, tries)
            await asyncio.sleep(min(5.0, 0.2 * 2**tries))
        raise AssertionError("counting never ends")

    def _ended(self, request: CollectRequest, result: TryResult, began: float) -> None:
        now = time.monotonic()
        overload = result.overload or (Overload.STALE if _is_too_old(request, result.records) else None)
        self.controller.record_try(now, started=began, full=self.limiter.full, overload=overload)
        running, waiting = self._queue()
        self.controller.record_queue(now, running=running, waiting=waiting)
        self._follow_controller()

    def _follow_controller(self) -> None:
        controller = self.controller
        self.limiter.resize(controller.limit)
        if controller.rising != self._rising:
            self._rising = controller.rising
            cause = "fresh" if controller.rising or controller.cause is None else controller.cause.value
            log.info("concurrency turns", rising=controller.rising, limit=controller.limit, cause=cause)


def _is_too_old(request: CollectRequest, records: list[CompletionRecord]) -> bool:
    """Whether the oldest token that was sampled can no longer be trained: what is pinned is not to be trained."""
    if request.mode != "train":
        return False
    return any(int(v) < request.oldest_version for r in records for v in r.versions[r.sampled])

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

from synth.rollouts.collection.batching import Collected
from synth.rollouts.collection.request_runner import Gathering, Moved
from synth.rollouts.collection.scoring import Rewarded
from synth.rollouts.collection.types import (
    Before,
    Broken,
    Gathered,
    GivenUp,
    GiveUp,
    Keep,
    Kept,
    Request,
    Spot,
    Tried,
    Try,
)
from synth.rollouts.concurrency.controller import Harm, Pace
from synth.rollouts.concurrency.limiter import Order, Places
from synth.runtime import logs
from synth.trajectories import CompletionRecord, build_branches

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
        attempt: Try,
        keep: Keep,
        give_up: GiveUp,
        progress: Callable[[int, int], None],
        group_timeout_s: float | None = None,
        queue: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """bound: rollouts at the task app at once, at most. max_tries: of one rollout, for errors of the environment.

        group_timeout_s: while all rollouts of a group are under way; None: as long as they take. queue: requests
        that run in the engines that serve the job, and that wait there.
        """
        self.pace = Pace(bound)
        self.places = Places(self.pace.limit)
        self._job_id = job_id
        self._max_tries = max_tries
        self._attempt = attempt
        self._keep = keep
        self._give_up = give_up
        self._progress = progress
        self._group_timeout_s = group_timeout_s
        self._queue = queue
        self._rising = True
        self.busy = 0
        """Requests that are being collected now."""

    async def collect(self, request: Request, before: Before, *, turn: int = 0) -> Gathered | Broken:
        """Run what is missing of a request. turn: its place among the job's requests; the earlier one goes first."""

        async def play(spot: Spot, moved: Moved) -> Kept | GivenUp:
            return await self._play(request, spot, (turn, spot.index), moved)

        gathering = Gathering(
            self._job_id,
            request,
            before,
            play=play,
            keep=self._keep,
            give_up=self._give_up,
            progress=self._progress,
            # A group of one has no others to go on with.
            group_timeout_s=self._group_timeout_s if request.group_size > 1 else None,
        )
        self.busy += 1
        try:
            return await gathering.run()
        finally:
            self.busy -= 1

    def stepped(self, waiting: int, busy: float) -> None:
        """The trainer has made a step; what is told as in `Pace.stepped`."""
        self.pace.stepped(time.monotonic(), waiting=waiting, busy=busy)
        self._follow_pace()

    async def _play(self, request: Request, spot: Spot, order: Order, moved: Moved) -> Kept | GivenUp:
        """One rollout, tried until it counts or its budget is spent. Between its tries it holds no place."""
        first = math.inf
        for tries in itertools.count(1):
            async with self.places.one(order):
                began = time.monotonic()
                first = min(first, began)
                tried = await self._attempt(request, spot, tries, functools.partial(moved, tries))
                self._ended(request, tried, began)
            verdict = tried.verdict
            if isinstance(verdict, Rewarded):
                collected = Collected(
                    rollout_id=spot.rollout_id,
                    group=spot.group,
                    seed=spot.seed,
                    reward=verdict.reward,
                    branches=build_branches(tried.records),
                    seconds=time.monotonic() - first,
                    tries=tries,
                )
                return Kept(spot, collected, verdict, len(tried.records))
            if tries >= self._max_tries:
                return GivenUp(verdict.problem, tries)
            await asyncio.sleep(min(5.0, 0.2 * 2**tries))
        raise AssertionError("counting never ends")

    def _ended(self, request: Request, tried: Tried, began: float) -> None:
        now = time.monotonic()
        harm = tried.harm or (Harm.STALE if _is_too_old(request, tried.records) else None)
        self.pace.ended(now, started=began, full=self.places.full, harm=harm)
        running, waiting = self._queue()
        self.pace.queue(now, running=running, waiting=waiting)
        self._follow_pace()

    def _follow_pace(self) -> None:
        pace = self.pace
        self.places.resize(pace.limit)
        if pace.rising != self._rising:
            self._rising = pace.rising
            cause = "fresh" if pace.rising or pace.cause is None else pace.cause.value
            log.info("concurrency turns", rising=pace.rising, limit=pace.limit, cause=cause)


def _is_too_old(request: Request, records: list[CompletionRecord]) -> bool:
    """Whether the oldest token that was sampled can no longer be trained: what is pinned is not to be trained."""
    if request.mode != "train":
        return False
    return any(int(v) < request.oldest_version for r in records for v in r.versions[r.sampled])

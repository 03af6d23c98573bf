"""Collects one job's rollouts: what to run, how many at once, what to try again, when an iteration is complete.

Invariants. At most `limit` rollouts of a job are at its task app at any time, whatever the iterations they belong to.
A rollout is durable (`keep`) before it counts. A rollout that is already in the log is never run again. Nothing here
knows HTTP or the bus: what a try is, and where its result is kept, are given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from synth.errors import Problem, Transient
from synth.ids import JobId, RolloutId, rollout_id_for
from synth.rollouts.groups import Collected
from synth.rollouts.outcome import EnvironmentFailed, Rewarded
from synth.trajectories import CompletionRecord, branches_of

#: An iteration in which more than this share of the rollouts fails stops the job: its environment is broken.
MAX_FAILED_SHARE = 0.5


@dataclass(frozen=True)
class Request:
    """One `rollout.requested`: rollout i plays seed i // group_size."""

    iteration: int
    mode: str
    seeds: list[int]
    group_size: int
    oldest_version: int
    pinned_version: int | None = None

    @property
    def size(self) -> int:
        return len(self.seeds) * self.group_size


@dataclass(frozen=True)
class Spot:
    """One rollout to run: which of the request's, and its seed."""

    rollout_id: RolloutId
    index: int
    group: int
    seed: int


@dataclass(frozen=True)
class Tried:
    """What one try gave: a verdict, and what the policy sampled."""

    verdict: Rewarded | EnvironmentFailed
    records: list[CompletionRecord]


@dataclass(frozen=True)
class Kept:
    """A finished rollout, to be made durable."""

    spot: Spot
    collected: Collected
    verdict: Rewarded
    calls: int


@dataclass(frozen=True)
class Before:
    """What the log has of a request already: rollouts that are done, and those that were given up, by index."""

    done: dict[int, Collected]
    failed: dict[int, Problem]


NOTHING_BEFORE = Before({}, {})

Try = Callable[[Request, Spot, int], Awaitable[Tried]]
Keep = Callable[[Request, Kept], Awaitable[None]]
GiveUp = Callable[[Request, Spot, Problem, int], Awaitable[None]]


@dataclass(frozen=True)
class Broken:
    """An iteration that cannot be collected: the environment failed too often, last of all like this."""

    problem: Problem


class Collector:
    """Runs the requests of one job within one bound on concurrency."""

    def __init__(
        self,
        job_id: str,
        *,
        limit: int,
        max_tries: int,
        attempt: Try,
        keep: Keep,
        give_up: GiveUp,
        progress: Callable[[int, int], None],
    ) -> None:
        """limit: rollouts at the task app at once. max_tries: of one rollout, for errors of the environment."""
        self._job_id = job_id
        # asyncio's semaphore is first come, first served: earlier iterations are never overtaken.
        self._slots = asyncio.Semaphore(limit)
        self._max_tries = max_tries
        self._attempt = attempt
        self._keep = keep
        self._give_up = give_up
        self._progress = progress
        self.busy = 0
        """Requests that are being collected now."""

    async def collect(self, request: Request, before: Before) -> tuple[list[Collected], int] | Broken:
        """Run what is missing of a request; returns its rollouts and how many of them failed."""
        self.busy += 1
        try:
            return await self._collect(request, before)
        finally:
            self.busy -= 1

    async def _collect(self, request: Request, before: Before) -> tuple[list[Collected], int] | Broken:
        found = dict(before.done)
        failures = list(before.failed.values())
        allowed = max(1, int(request.size * MAX_FAILED_SHARE))

        async def one(spot: Spot) -> None:
            async with self._slots:
                result = await self._run(request, spot)
            if isinstance(result, Problem):
                failures.append(result)
                if len(failures) > allowed:
                    raise _TooMany(result)
            else:
                found[spot.index] = result
            self._progress(len(found) + len(failures), request.size)

        try:
            async with asyncio.TaskGroup() as group:
                for spot in self._spots(request):
                    if spot.index not in before.done and spot.index not in before.failed:
                        group.create_task(one(spot))
        except ExceptionGroup as group:
            first = group.exceptions[0]
            if not isinstance(first, _TooMany):
                raise first from group
            return Broken(first.problem)
        if failures and not found:
            return Broken(failures[-1])
        return list(found.values()), len(failures)

    def _spots(self, request: Request) -> list[Spot]:
        return [
            Spot(
                rollout_id=rollout_id_for(JobId(self._job_id), request.mode, request.iteration, i),
                index=i,
                group=i // request.group_size,
                seed=request.seeds[i // request.group_size],
            )
            for i in range(request.size)
        ]

    async def _run(self, request: Request, spot: Spot) -> Collected | Problem:
        started = time.monotonic()
        tries = 0
        while True:
            tries += 1
            tried = await self._attempt(request, spot, tries)
            if isinstance(tried.verdict, Rewarded):
                collected = Collected(
                    rollout_id=spot.rollout_id,
                    group=spot.group,
                    seed=spot.seed,
                    reward=tried.verdict.reward,
                    branches=branches_of(tried.records),
                    seconds=time.monotonic() - started,
                    tries=tries,
                )
                await self._keep(request, Kept(spot, collected, tried.verdict, len(tried.records)))
                return collected
            if tries >= self._max_tries:
                await self._give_up(request, spot, tried.verdict.problem, tries)
                return tried.verdict.problem
            await asyncio.sleep(min(5.0, 0.2 * 2**tries))


class _TooMany(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text())
        self.problem = problem


class PolicyVersions:
    """Which policy version is served, and a wait for one that is fresh enough."""

    def __init__(self) -> None:
        self.latest = -1
        self._of: dict[str, int] = {}
        self._news = asyncio.Condition()

    async def loaded(self, version: int, replica: str) -> None:
        """This replica serves this version."""
        async with self._news:
            self.latest = max(self.latest, version)
            self._of[replica] = version
            self._news.notify_all()

    def is_at(self, replica: str, version: int) -> bool:
        """Whether a replica serves this version or a later one."""
        return self._of.get(replica, -1) >= version

    async def at_least(self, version: int, *, timeout: float) -> None:
        """Return when this version, or a later one, is served. Raises `Transient` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self._news:
                await self._news.wait_for(lambda: self.latest >= version)
        except TimeoutError as error:
            raise Transient(f"policy version {version} is not served after {timeout:.0f} s") from error

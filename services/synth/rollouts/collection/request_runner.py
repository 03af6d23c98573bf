"""The run of one request: its groups, their rollouts' tries and deadlines, and refills for groups without a signal.

Invariants. Refill group n (from 0) runs if, and only if, more than n earlier groups had no signal. So the same groups
run for any order in which rollouts end, and for a collector that takes over. A group that lacks a rollout because of a
failure is dropped; a group that lacks late rollouts goes on with the others. A rollout holds no slot between its tries,
and none while it is judged, so that judging overlaps with playing.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from synth.errors import Problem
from synth.rollouts.collection.batching import CreditRules, group_has_signal
from synth.rollouts.collection.deadline import Deadline
from synth.rollouts.collection.types import (
    Abandon,
    AbandonedRollout,
    CollectionBlocked,
    CollectRequest,
    Complete,
    CompletedRollout,
    CutOff,
    DurableRollout,
    EnvironmentBroken,
    Judge,
    PriorProgress,
    RequestResult,
    RolloutSpec,
    RunTry,
)
from synth.rollouts.concurrency.controller import Overload
from synth.rollouts.concurrency.job_concurrency import JobConcurrency
from synth.rollouts.rewards.scoring import Rewarded
from synth.trajectories import CompletionRecord, build_branches, is_cut_off

#: If more than this share of a request's rollouts is abandoned, the environment is broken, and the job stops.
MAX_FAILED_SHARE = 0.5


@dataclass
class _Tries:
    """The tries of one rollout. begun: how many. failures: why the earlier tries failed."""

    begun: int = 0
    failures: list[Problem] = field(default_factory=list[Problem])
    cut_off: CutOff = field(default_factory=CutOff)


class RequestRunner:
    """The run of one request."""

    def __init__(
        self,
        job_id: str,
        request: CollectRequest,
        prior: PriorProgress,
        *,
        priority: int,
        concurrency: JobConcurrency,
        max_tries: int,
        run_try: RunTry,
        complete: Complete,
        abandon: Abandon,
        progress: Callable[[int, int], None],
        group_timeout_s: float | None,
        judge: Judge | None,
        credit: CreditRules,
    ) -> None:
        """Take the arguments of `Collector` and of `Collector.collect`."""
        self._job_id = job_id
        self._request = request
        self._priority = priority
        self._concurrency = concurrency
        self._max_tries = max_tries
        self._run_try = run_try
        self._complete = complete
        self._abandon = abandon
        self._progress = progress
        # If nothing is compared, no rollout waits for the others of its group.
        self._group_timeout_s = group_timeout_s if request.compares else None
        self._judge = judge
        self._credit = credit
        self._done = dict(prior.done)
        self._unjudged = dict(prior.unjudged)
        self._abandoned = dict(prior.abandoned)
        self._tries: defaultdict[int, _Tries] = defaultdict(_Tries)
        """The tries of each rollout that runs here, by index."""
        self._groups = 0
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> RequestResult | EnvironmentBroken:
        """Run the missing rollouts, until the request is complete or its environment is broken."""
        try:
            async with self._tasks:
                for _ in self._request.seeds:
                    self._begin_group()
        except ExceptionGroup as group:
            first = _first(group)
            if not isinstance(first, CollectionBlocked):
                raise first from group
            return first.broken
        if self._abandoned and not self._done:
            return _broken_by(next(reversed(self._abandoned.values())))
        late = Counter(index // self._request.group_size for index, a in self._abandoned.items() if a.late)
        return RequestResult(
            rollouts=list(self._done.values()),
            groups=self._groups,
            num_rollouts=self._num_rollouts,
            failed=sum(not a.late for a in self._abandoned.values()),
            late=dict(late),
        )

    @property
    def _num_rollouts(self) -> int:
        return self._groups * self._request.group_size

    def _begin_group(self) -> None:
        self._tasks.create_task(self._run_group(self._groups))
        self._groups += 1

    async def _run_group(self, group: int) -> None:
        specs = self._request.specs(self._job_id, group)
        missing = [s for s in specs if not any(s.index in m for m in (self._done, self._abandoned, self._unjudged))]
        with closing(Deadline((s.index for s in missing), self._group_timeout_s)) as deadline:
            async with asyncio.TaskGroup() as tasks:
                for waiting in self._unjudged_of(specs) if self._judges_each else ():
                    tasks.create_task(self._judge_rollouts([waiting]))
                running = {s.index: tasks.create_task(self._run_rollout(s, deadline)) for s in missing}
                if self._group_timeout_s is not None and missing:
                    await _ended_or_expired(set(running.values()), deadline)
                    late = [s for s in missing if not deadline.is_over(s.index)]
                    await self._abandon_late(late, running, self._group_timeout_s)
        if len(together := self._unjudged_of(specs)) > 1:
            await self._judge_rollouts(together)
        if not self._has_signal(specs) and self._groups < self._request.max_groups:
            self._begin_group()

    async def _run_rollout(self, spec: RolloutSpec, deadline: Deadline) -> None:
        outcome = await self._try_until_decided(spec, deadline)
        # From here on it cannot be late: a rollout that is being made durable is part of its group.
        deadline.mark_over(spec.index)
        self._tries.pop(spec.index, None)
        if isinstance(outcome, CompletedRollout):
            durable = await self._complete(self._request, outcome)
            if self._judge is None:
                self._done[spec.index] = durable.rollout
                self._report_progress()
                return
            self._unjudged[spec.index] = durable
            if self._judges_each:
                await self._judge_rollouts([durable])
        else:
            await self._abandon(self._request, spec, outcome)
            self._take_abandoned(spec.index, outcome)

    @property
    def _judges_each(self) -> bool:
        """Whether each rollout is judged alone: in a group of one and in an evaluation, nothing is compared."""
        return self._judge is not None and not (self._request.compares and self._judge.by_group)

    def _unjudged_of(self, specs: list[RolloutSpec]) -> list[DurableRollout]:
        return [self._unjudged[s.index] for s in specs if s.index in self._unjudged]

    async def _judge_rollouts(self, rollouts: list[DurableRollout]) -> None:
        assert self._judge is not None
        judged = await self._judge.judge(self._request, rollouts)
        for durable, outcome in zip(rollouts, judged, strict=True):
            del self._unjudged[durable.index]
            if isinstance(outcome, AbandonedRollout):
                self._take_abandoned(durable.index, outcome)
            else:
                self._done[durable.index] = outcome
                self._report_progress()

    async def _try_until_decided(self, spec: RolloutSpec, deadline: Deadline) -> CompletedRollout | AbandonedRollout:
        """Try a rollout until it has a reward or its budget of tries is spent."""
        first_began = math.inf
        ours = self._tries[spec.index]
        for tries in itertools.count(1):
            async with self._concurrency.acquire((self._priority, spec.index)):
                began = time.monotonic()
                first_began = min(first_began, began)
                ours.begun = tries
                deadline.mark_away(spec.index)
                result = await self._run_try(self._request, spec, deadline, ours.cut_off)
                stale = Overload.STALE if _is_too_old(self._request, result.records) else None
                self._concurrency.record_try(started=began, overload=result.overload or stale)
            if isinstance(result.score, Rewarded):
                return CompletedRollout(
                    spec,
                    result.score,
                    build_branches(result.records),
                    seconds=time.monotonic() - first_began,
                    tries=tries,
                    calls=len(result.records),
                    transcript=result.transcript,
                    traced=result.traced,
                    failures=ours.failures,
                    cut_off=is_cut_off(result.records),
                    images_dropped=sum(record.images_dropped for record in result.records),
                )
            if tries >= self._max_tries:
                problem, transcript = result.score.problem, result.transcript
                return AbandonedRollout(problem, tries, transcript=transcript, failures=ours.failures)
            ours.failures.append(result.score.problem)
            # If the next try is cut off before it samples anything, this transcript is the one to show.
            ours.cut_off.transcript = result.transcript
            await asyncio.sleep(min(5.0, 0.2 * 2**tries))
        raise AssertionError("counting never ends")

    async def _abandon_late(
        self, late: list[RolloutSpec], running: dict[int, asyncio.Task[None]], timeout_s: float
    ) -> None:
        """End the rollouts that are not over when their group's time has passed."""
        for spec in late:
            running[spec.index].cancel()
        if late:
            await asyncio.wait([running[spec.index] for spec in late])
        for spec in late:
            abandoned = _late(timeout_s, self._tries.pop(spec.index, _Tries()))
            await self._abandon(self._request, spec, abandoned)
            self._take_abandoned(spec.index, abandoned)

    def _take_abandoned(self, index: int, abandoned: AbandonedRollout) -> None:
        self._abandoned[index] = replace(abandoned, transcript=b"")
        self._report_progress()
        if len(self._abandoned) > max(1, int(self._num_rollouts * MAX_FAILED_SHARE)):
            raise CollectionBlocked(_broken_by(abandoned))

    def _report_progress(self) -> None:
        self._progress(len(self._done) + len(self._abandoned), self._num_rollouts)

    def _has_signal(self, specs: list[RolloutSpec]) -> bool:
        if any(s.index in self._abandoned and not self._abandoned[s.index].late for s in specs):
            return False
        return group_has_signal([self._done[s.index] for s in specs if s.index in self._done], self._credit)


def _broken_by(abandoned: AbandonedRollout) -> EnvironmentBroken:
    return EnvironmentBroken(abandoned.problem, "judge_failed" if abandoned.unjudged else "task_app_failed")


async def _ended_or_expired(running: set[asyncio.Task[None]], deadline: Deadline) -> None:
    """Return when every rollout of a group has ended, or when they have no time left."""
    expired = asyncio.create_task(deadline.expired())
    try:
        while running and not expired.done():
            await asyncio.wait({expired, *running}, return_when=asyncio.FIRST_COMPLETED)
            running = {task for task in running if not task.done()}
    finally:
        expired.cancel()


def _is_too_old(request: CollectRequest, records: list[CompletionRecord]) -> bool:
    """Return whether the oldest sampled token is too old to be trained. An evaluation's tokens are never trained."""
    if request.mode != "train":
        return False
    return any(int(v) < request.oldest_version for r in records for v in r.versions[r.sampled])


def _late(timeout_s: float, tries: _Tries) -> AbandonedRollout:
    problem = Problem(
        what=f"the rollout was not over {timeout_s:g} s after the last of its group had begun",
        expected="a reply within [rollout].group_timeout_s",
        fix="look at the task app's own log for this run_id, or give groups more time",
    )
    transcript, failures = tries.cut_off.transcript, tries.failures
    return AbandonedRollout(problem, tries.begun, late=True, transcript=transcript, failures=failures)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first of the errors that ended nested task groups."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first

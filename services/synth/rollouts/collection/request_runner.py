"""One request's groups: played, cut off at their deadline, and refilled where they came without a signal.

Invariants. Refill n is played when, and only when, more than n of the groups before it came without a signal; which
groups are played is therefore the same in whatever order rollouts end, and for a collector that takes over. A group
that lacks a rollout for a failure is dropped; one that lacks some for their lateness goes with those that it has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from synth.errors import Problem
from synth.rollouts.collection.batching import has_signal
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
)

#: A request of which more than this share of the rollouts is given up stops the job: its environment is broken.
MAX_FAILED_SHARE = 0.5

Moved = Callable[[int, bool], None]
"""Called with the number of the try, and whether the rollout is at its task app now: see `AtApp`."""
Play = Callable[[RolloutSpec, Moved], Awaitable[CompletedRollout | AbandonedRollout]]


class RequestRunner:
    """The collection of one request."""

    def __init__(
        self,
        job_id: str,
        request: CollectRequest,
        prior: PriorProgress,
        *,
        play: Play,
        complete: Complete,
        abandon: Abandon,
        progress: Callable[[int, int], None],
        group_timeout_s: float | None,
    ) -> None:
        self._job_id = job_id
        self._request = request
        self._play_once = play
        self._complete = complete
        self._abandon = abandon
        self._progress = progress
        self._group_timeout_s = group_timeout_s
        self._done = dict(prior.done)
        self._abandoned = dict(prior.abandoned)
        self._groups = 0
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> RequestResult | EnvironmentBroken:
        """Play what is missing, to the end of the request or of its environment."""
        try:
            async with self._tasks:
                for _ in self._request.seeds:
                    self._begin_group()
        except ExceptionGroup as group:
            first = _first(group)
            if not isinstance(first, _TooMany):
                raise first from group
            return EnvironmentBroken(first.problem)
        failed = [g for g in self._abandoned.values() if not g.late]
        if self._abandoned and not self._done:
            return EnvironmentBroken(next(reversed(self._abandoned.values())).problem)
        late = Counter(index // self._request.group_size for index, g in self._abandoned.items() if g.late)
        return RequestResult(
            rollouts=list(self._done.values()),
            groups=self._groups,
            spent=self._spent,
            failed=len(failed),
            late=dict(late),
        )

    @property
    def _spent(self) -> int:
        return self._groups * self._request.group_size

    def _begin_group(self) -> None:
        self._tasks.create_task(self._group(self._groups))
        self._groups += 1

    async def _group(self, group: int) -> None:
        specs = self._request.specs(self._job_id, group)
        missing = [s for s in specs if s.index not in self._done and s.index not in self._abandoned]
        if missing:
            async with asyncio.TaskGroup() as tasks:
                runs = _Runs(missing, self._group_timeout_s)
                for spec in missing:
                    runs.tasks[spec.index] = tasks.create_task(self._one(spec, runs))
                if self._group_timeout_s is not None:
                    await self._cut_off(runs, self._group_timeout_s)
        if not self._has_signal(specs) and self._groups < self._request.max_groups:
            self._begin_group()

    async def _one(self, spec: RolloutSpec, runs: _Runs) -> None:
        def moved(tries: int, at_app: bool) -> None:
            runs.moved(spec, tries, at_app)
            # Each try has its own deadlines: one that begins, or waits for its replica, is no sign of a hang.
            self._say_progress()

        came = await self._play_once(spec, moved)
        # From here on it is not late any more: what is being made durable is part of its group.
        runs.over(spec)
        if isinstance(came, CompletedRollout):
            await self._complete(self._request, came)
            self._done[spec.index] = came.rollout
            self._say_progress()
        else:
            await self._without(spec, came)

    async def _without(self, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        await self._abandon(self._request, spec, abandoned)
        self._abandoned[spec.index] = abandoned
        self._say_progress()
        if len(self._abandoned) > max(1, int(self._spent * MAX_FAILED_SHARE)):
            raise _TooMany(abandoned.problem)

    def _say_progress(self) -> None:
        self._progress(len(self._done) + len(self._abandoned), self._spent)

    async def _cut_off(self, runs: _Runs, timeout: float) -> None:
        """End what still runs when the group's time is over."""
        await runs.all_ended_or_time_over()
        late = [spec for spec in runs.specs if spec.index not in runs.played]
        for spec in late:
            runs.tasks[spec.index].cancel()
        if late:
            await asyncio.wait([runs.tasks[spec.index] for spec in late])
        for spec in late:
            await self._without(spec, _late(timeout, runs.tries[spec.index]))

    def _has_signal(self, specs: list[RolloutSpec]) -> bool:
        if any(s.index in self._abandoned and not self._abandoned[s.index].late for s in specs):
            return False
        return has_signal([self._done[s.index].reward for s in specs if s.index in self._done])


class _Runs:
    """The rollouts of a group that are being played, and the time that is left to them: a clock that stands still
    while one of them is not at its task app, since it has no replica. What is late by then is the app's doing.

    played: those whose playing is over. tries: of each, so far.
    """

    def __init__(self, specs: list[RolloutSpec], timeout: float | None) -> None:
        self.specs = specs
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.tries: dict[int, int] = {}
        self.played: set[int] = set()
        self._away = {spec.index for spec in specs}
        self._left_s = timeout
        self._since = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._time_over = asyncio.Event()

    def moved(self, spec: RolloutSpec, tries: int, at_app: bool) -> None:
        self.tries[spec.index] = tries
        (self._away.discard if at_app else self._away.add)(spec.index)
        self._run_clock()

    def over(self, spec: RolloutSpec) -> None:
        self.played.add(spec.index)
        self._away.discard(spec.index)
        self._run_clock()

    async def all_ended_or_time_over(self) -> None:
        over = asyncio.create_task(self._time_over.wait())
        try:
            running = set(self.tasks.values())
            while running and not over.done():
                await asyncio.wait({over, *running}, return_when=asyncio.FIRST_COMPLETED)
                running = {task for task in running if not task.done()}
        finally:
            over.cancel()
            if self._alarm is not None:
                self._alarm.cancel()

    def _run_clock(self) -> None:
        """Let it go, or hold it."""
        if self._left_s is None or bool(self._away) == (self._alarm is None):
            return
        loop = asyncio.get_running_loop()
        if self._alarm is None:
            self._since = loop.time()
            self._alarm = loop.call_later(self._left_s, self._time_over.set)
        else:
            self._alarm.cancel()
            self._alarm = None
            self._left_s = max(0.0, self._left_s - (loop.time() - self._since))


class _TooMany(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text())
        self.problem = problem


def _late(timeout: float, tries: int) -> AbandonedRollout:
    problem = Problem(
        what=f"the rollout was not over {timeout:g} s after the last of its group had begun",
        expected="a reply within [rollout].group_timeout_s",
        fix="look at the task app's own log for this run_id, or give groups more time",
    )
    return AbandonedRollout(problem, tries, late=True)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The first of the errors that ended nested task groups."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first

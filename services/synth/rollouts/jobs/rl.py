"""The rollouts of an RL job: each request of its trainer collected, batched and announced, until the job is over.

Invariants. Requests are collected in their order and may overlap; their batches are announced strictly in order. A
request waits for a policy that is fresh enough for it. One that is finished in the log is never collected again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

from synth.errors import Permanent, Problem
from synth.events import EvalCompleted, PolicyLoaded, RolloutRequested
from synth.jobs.lifecycle import JobStatus
from synth.jobs.resolved import RlJob
from synth.rollouts.collection.batching import Collected, build_batch, collection_values
from synth.rollouts.collection.types import Broken, Gathered, Request
from synth.rollouts.concurrency.controller import Harm
from synth.rollouts.concurrency.limiter import busy_share, mean_taken
from synth.rollouts.event_log import as_request
from synth.rollouts.jobs.context import Collection
from synth.runtime import logs

log = logs.get("iterations")


async def collect_iterations(collection: Collection, job: RlJob) -> None:
    """Serve a job's trainer until the job has ended or is paused. What makes that impossible is said."""
    try:
        await collection.record.read()
        await _until_over(collection, job)
    except ExceptionGroup as group:
        # One request's failure is the task's: whoever owns the task looks at the error itself.
        if not isinstance(group.exceptions[0], Permanent):
            raise group.exceptions[0] from group
        await collection.record.blocked(0, Problem(what=str(group.exceptions[0])))


async def _until_over(collection: Collection, job: RlJob) -> None:
    iterations = _Iterations(collection, job)
    standing = JobStatus()
    live = False
    # From the beginning: what was requested, and loaded, before us counts too.
    events = collection.follow("rollout.requested", "policy.loaded", "job.*")
    async with aclosing(events), asyncio.TaskGroup() as group:
        async for recorded in events:
            live = live or recorded.pending == 0
            match recorded.event:
                case PolicyLoaded(version=version, replica=replica):
                    # Of the term before, whose replicas have let go of it.
                    if recorded.seq < collection.history.since:
                        continue
                    if live and version > collection.versions.latest:
                        iterations.stepped(version)
                    await collection.versions.loaded(version, replica)
                case RolloutRequested() as event:
                    iterations.start(as_request(event), group)
                case _:
                    standing.add(recorded.type)
                    if standing.is_over(collection.term):
                        break
        iterations.stop()


class _Iterations:
    """The requests under way."""

    def __init__(self, collection: Collection, job: RlJob) -> None:
        self._collection = collection
        self._job = job
        self._running: set[asyncio.Task[None]] = set()
        self._started: set[tuple[str, int]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._places = collection.collector.places
        self._last_step = self._places.use()
        self._halved_before: Counter[Harm] = Counter()

    def start(self, request: Request, group: asyncio.TaskGroup) -> None:
        """Collect a request, unless it is finished in the log or under way."""
        key = (request.mode, request.iteration)
        if self._collection.record.finished(request) or key in self._started:
            return
        self._started.add(key)
        run = self._evaluate if request.mode == "eval" else self._iteration
        task = self._last[request.mode] = group.create_task(
            run(request, len(self._started), self._last.get(request.mode))
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def stepped(self, version: int) -> None:
        """The trainer has made this version, and goes on with the next batch if there is one."""
        use = self._places.use()
        waiting = self._collection.record.batches - (version + 1)
        self._collection.collector.stepped(max(-1, waiting), busy_share(self._last_step, use))
        self._last_step = use

    def stop(self) -> None:
        """Drop what is under way: the job is over, for now or for good."""
        for task in self._running:
            task.cancel()

    async def _iteration(self, request: Request, turn: int, before: asyncio.Task[None] | None) -> None:
        found = await self._collect(request, turn)
        if isinstance(found, Broken):
            await self._collection.record.blocked(request.iteration, found.problem)
            return
        gathered, values = found
        job = self._job
        if before is not None:
            await asyncio.wait([before])
        values |= self._concurrency_values() | {
            "batches_ahead": float(request.iteration - 1 - self._collection.versions.latest),
            "groups_refilled": float(gathered.groups - len(request.seeds)),
            "groups_partial": float(len(gathered.late)),
            "rollouts_late": float(sum(gathered.late.values())),
            "rollouts_spent": float(gathered.spent),
        }
        batch = build_batch(
            gathered.rollouts,
            job_id=self._collection.history.job_id,
            iteration=request.iteration,
            temperature=job.rollout.sampling.temperature,
            groups=gathered.groups,
            group_size=request.group_size,
            by_std=job.advantage_std,
            values=values,
            late=gathered.late,
        )
        await self._collection.record.batch(batch, values)
        log.info("batch", iteration=request.iteration, sequences=batch.sequences, reward=values.get("reward_mean"))

    async def _evaluate(self, request: Request, turn: int, before: asyncio.Task[None] | None) -> None:
        # One after the other: each needs a place of its own for its pinned version beside the live policy.
        if before is not None:
            await asyncio.wait([before])
        found = await self._collect(request, turn)
        if isinstance(found, Broken):
            # An evaluation that cannot be played is a figure that is missing, not the end of the training.
            log.error("evaluation failed", iteration=request.iteration, reason=found.problem.text())
            rollouts: list[Collected] = []
            values = collection_values(rollouts, failed=request.size)
        else:
            gathered, values = found
            rollouts = gathered.rollouts
        event = EvalCompleted(
            model=f"{self._collection.history.job_id}@v{request.pinned_version}",
            instances=len(rollouts),
            values=values,
            step=request.pinned_version,
            iteration=request.iteration,
        )
        await self._collection.record.evaluated(event)

    async def _collect(self, request: Request, turn: int) -> tuple[Gathered, dict[str, float]] | Broken:
        """A request's rollouts and their figures, or why the environment cannot give them."""
        collection = self._collection
        version = max(request.oldest_version, request.pinned_version or 0)
        await collection.versions.at_least(version, timeout=collection.settings.policy_wait_s)
        began = self._places.use()
        result = await collection.collector.collect(request, await collection.record.before(request), turn=turn)
        if isinstance(result, Broken):
            return result
        ended = self._places.use()
        values = collection_values(result.rollouts, failed=result.failed)
        return result, values | {
            "collect_seconds": ended.at - began.at,
            "concurrency_mean": mean_taken(began, ended),
        }

    def _concurrency_values(self) -> dict[str, float]:
        """The limit now, and how often and why it was halved since the batch before."""
        pace = self._collection.collector.pace
        since, self._halved_before = pace.halved - self._halved_before, pace.halved.copy()
        return {
            "concurrency_limit": float(pace.limit),
            **{f"concurrency_halved_{harm.value}": float(since[harm]) for harm in Harm},
        }

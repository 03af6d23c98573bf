"""The service for the trainer of an RL job: collects, batches and announces each request, until the job is over.

Invariants. Requests are collected in their order and may overlap; their batches are announced strictly in order. A
request waits for a policy that is new enough for it. One that is finished in the log is never collected again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

from synth.bus.cancellation import cancel_until_ended
from synth.errors import Permanent, Problem
from synth.events import EvalCompleted, PolicyLoaded, RolloutRequested
from synth.jobs.lifecycle import JobStatus
from synth.methods.rl import RlJob
from synth.rollouts.collection.batching import ScoredRollout, build_batch
from synth.rollouts.collection.metrics import collection_metrics, repeated_metrics
from synth.rollouts.collection.types import CollectRequest, EnvironmentBroken, RequestResult
from synth.rollouts.concurrency.controller import Overload
from synth.rollouts.concurrency.limiter import busy_share, mean_in_use
from synth.rollouts.event_log import request_from_event
from synth.rollouts.jobs.context import CollectionContext
from synth.rollouts.rewards.plugin import AdvantageFailed
from synth.runtime import logs
from synth.trajectories import ProcessorsDiffer

log = logs.get("collect")


async def collect_iterations(context: CollectionContext, job: RlJob) -> None:
    """Serve a job's trainer until the job has ended or is paused. An error that makes it impossible is announced."""
    try:
        await context.event_log.read()
        await _serve_until_over(context, job)
    except ExceptionGroup as group:
        # The failure of one request is the failure of the task: the worker needs the error itself.
        error = group.exceptions[0]
        if not isinstance(error, Permanent):
            raise error from group
        problem = Problem(what=str(error))
        broken = EnvironmentBroken(
            problem, "plugin_failed" if isinstance(error, AdvantageFailed) else "task_app_failed"
        )
        await context.event_log.publish_blocked(0, broken)


async def _serve_until_over(context: CollectionContext, job: RlJob) -> None:
    requests = _RunningRequests(context, job)
    status = JobStatus()
    live = False
    # From the beginning of the log: requests and loaded versions of earlier collectors count too.
    events = context.follow("rollout.requested", "policy.loaded", "job.*")
    async with aclosing(events), asyncio.TaskGroup() as group:
        async for recorded in events:
            live = live or recorded.pending == 0
            match recorded.event:
                case PolicyLoaded(version=version, replica=replica):
                    # This event is of an earlier term, whose replicas have unloaded the policy.
                    if recorded.seq < context.history.since:
                        continue
                    if live and version > context.versions.latest:
                        requests.record_step(version)
                    await context.versions.record_loaded(version, replica)
                case RolloutRequested() as event:
                    requests.start(request_from_event(event), group)
                case _:
                    status.add(recorded.type)
                    if status.is_over(context.term):
                        break
        await requests.stop()


class _RunningRequests:
    """The requests that are being collected."""

    def __init__(self, context: CollectionContext, job: RlJob) -> None:
        self._context = context
        self._job = job
        self._running: set[asyncio.Task[None]] = set()
        self._started: set[tuple[str, int]] = set()
        self._last_by_mode: dict[str, asyncio.Task[None]] = {}
        self._concurrency = context.collector.concurrency
        self._occupancy_at_step = self._concurrency.occupancy()
        self._halved_before: Counter[Overload] = Counter()

    def start(self, request: CollectRequest, group: asyncio.TaskGroup) -> None:
        """Begin to collect a request, unless it is finished in the log or was begun."""
        key = (request.mode, request.iteration)
        if self._context.event_log.finished(request) or key in self._started:
            return
        self._started.add(key)
        run = self._collect_evaluation if request.mode == "eval" else self._collect_batch
        task = self._last_by_mode[request.mode] = group.create_task(
            run(request, len(self._started), self._last_by_mode.get(request.mode))
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def record_step(self, version: int) -> None:
        """Record that the trainer has made this version, and goes on with the next batch if there is one."""
        occupancy = self._concurrency.occupancy()
        waiting = self._context.event_log.last_batched_iteration - (version + 1)
        self._concurrency.record_step(waiting=max(-1, waiting), busy=busy_share(self._occupancy_at_step, occupancy))
        self._occupancy_at_step = occupancy

    async def stop(self) -> None:
        """End all running collections: the job has ended or is paused."""
        await cancel_until_ended(*self._running, what=f"the collection of {self._context.history.job_id}")

    async def _collect_batch(self, request: CollectRequest, priority: int, previous: asyncio.Task[None] | None) -> None:
        found = await self._collect_rollouts(request, priority)
        if isinstance(found, EnvironmentBroken):
            await self._context.event_log.publish_blocked(request.iteration, found)
            return
        result, values = found
        job = self._job
        if (missing := _no_step_rewards(result.rollouts, job)) is not None:
            await self._context.event_log.publish_blocked(request.iteration, EnvironmentBroken(missing))
            return
        if previous is not None:
            await asyncio.wait([previous])
        values |= self._concurrency_metrics() | {
            "batches_ahead": float(request.iteration - 1 - self._context.versions.latest),
            "groups_refilled": float(result.groups - len(request.seeds)),
            "groups_partial": float(len(result.late)),
            "rollouts_late": float(sum(result.late.values())),
            "rollouts_spent": float(result.num_rollouts),
        }
        try:
            batch = build_batch(
                result.rollouts,
                job_id=self._context.history.job_id,
                iteration=request.iteration,
                temperature=job.rollout.sampling.temperature,
                groups=result.groups,
                group_size=request.group_size,
                credit=self._context.collector.credit,
                values=values,
                late=result.late,
            )
        except ProcessorsDiffer as error:
            await self._context.event_log.publish_blocked(request.iteration, EnvironmentBroken(error.problem))
            return
        await self._context.event_log.publish_batch(batch, values)
        log.info("batch", iteration=request.iteration, sequences=batch.sequences, reward=values.get("reward_mean"))

    async def _collect_evaluation(
        self, request: CollectRequest, priority: int, previous: asyncio.Task[None] | None
    ) -> None:
        threshold = self._job.evaluation.success_threshold if self._job.evaluation else None
        # Evaluations run one after the other: each needs memory for its pinned version beside the live policy.
        if previous is not None:
            await asyncio.wait([previous])
        found = await self._collect_rollouts(request, priority)
        if isinstance(found, EnvironmentBroken):
            # An evaluation that cannot be collected is a missing metric, not the end of the training.
            log.error("evaluation failed", iteration=request.iteration, reason=found.problem.text())
            rollouts: list[ScoredRollout] = []
            values = collection_metrics(rollouts, failed=request.size, rewards=self._job.rewards)
        else:
            result, values = found
            rollouts = result.rollouts
            values = values | repeated_metrics(
                rollouts, rewards=self._job.rewards, rollouts_per_seed=request.group_size, success_threshold=threshold
            )
        event = EvalCompleted(
            model=f"{self._context.history.job_id}@v{request.pinned_version}",
            instances=len(rollouts),
            values=values,
            step=request.pinned_version,
            iteration=request.iteration,
            rollouts_per_seed=request.group_size,
            success_threshold=threshold,
        )
        await self._context.event_log.publish_evaluation(event)

    async def _collect_rollouts(
        self, request: CollectRequest, priority: int
    ) -> tuple[RequestResult, dict[str, float]] | EnvironmentBroken:
        """Return the rollouts of a request with their metrics, or why the environment cannot give them."""
        context = self._context
        version = max(request.oldest_version, request.pinned_version or 0)
        await context.versions.wait_at_least(version, timeout=context.settings.policy_wait_s)
        began = self._concurrency.occupancy()
        result = await context.collector.collect(
            request, await context.event_log.prior_progress(request), priority=priority
        )
        if isinstance(result, EnvironmentBroken):
            return result
        ended = self._concurrency.occupancy()
        values = collection_metrics(result.rollouts, failed=result.failed, rewards=self._job.rewards)
        return result, values | {
            "collect_seconds": ended.at - began.at,
            "concurrency_mean": mean_in_use(began, ended),
        }

    def _concurrency_metrics(self) -> dict[str, float]:
        """Return the current limit, and the number of its halvings by cause since the previous batch."""
        halved = self._concurrency.halved
        since, self._halved_before = halved - self._halved_before, halved.copy()
        return {
            "concurrency_limit": float(self._concurrency.limit),
            **{f"concurrency_halved_{cause.value}": float(since[cause]) for cause in Overload},
        }


def _no_step_rewards(rollouts: list[ScoredRollout], job: RlJob) -> Problem | None:
    """Return the problem that no rollout has step rewards; None if some rollout has them.

    A rollout without step rewards, such as one that the policy failed, has its episode's reward in its last turn.
    """
    steps = job.rewards.steps
    if steps is None or not rollouts or not all(r.steps_missing for r in rollouts):
        return None
    records = {
        "decision_stepwise": "decision_samples[].r_i, or steps[].info with stepwise.reward or meta.decision_rewards",
        "env_sparse": "steps[].reward, or steps[].obs.reward_last_step",
    }[steps.mode]
    return Problem(
        what=f"no answer of the task app says what its steps earned ({len(rollouts)} rollouts)",
        expected=f"{records}, as step_rewards_mode = {steps.mode!r} of [training] reads",
        fix="have the task app send them, or set step_rewards_enabled = false",
        where="[training].step_rewards_mode",
    )

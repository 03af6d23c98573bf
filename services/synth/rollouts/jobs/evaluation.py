"""An evaluation job: its collector owns it from the time that its model is served until it ends or is paused.

Every append expects the collector's attempt, and all its work ends once another attempt has started.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing

from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory
from synth.bus.history.ownership import Ownership, failure_of
from synth.bus.publish import Fence
from synth.bus.replay import follow
from synth.bus.tasks.lease import Lease
from synth.events import EvalCompleted, JobFailed, JobSucceeded, PolicyLoaded, PolicyRefused
from synth.events.catalogue import Event
from synth.jobs.lifecycle import JobStatus
from synth.methods.eval import EvalJob
from synth.rollouts.collection.metrics import evaluation_metrics
from synth.rollouts.collection.types import CollectRequest, EnvironmentBroken
from synth.rollouts.jobs.context import CollectionContext
from synth.work import Task

Open = Callable[[Fence], AbstractAsyncContextManager[CollectionContext]]
"""Opens the context of a collection, once the job has an owner."""


async def evaluate(bus: Connection, history: JobHistory, job: EvalJob, lease: Lease, worker: str, open: Open) -> None:
    """Run an evaluation to its end (success, failure with its cause, or cancellation), or until it is paused."""
    # There is no deadline: a job that waits for an engine does not hang.
    lease.progress("wait for the model", deadline=math.inf)
    term = lease.task.term
    refused = await _wait_until_served(bus, history, term)
    ownership = await Ownership.take(bus, history.org, history.job_id, worker=worker, term=term)
    if ownership is None:
        return

    async def work() -> Event:
        async with open(ownership.fence) as context:
            return await _evaluate(context, job)

    ending = refused or ownership.requested_ending(step=0) or await ownership.run(work())
    await ownership.end(ending)


async def fail(bus: Connection, task: Task, ending: JobFailed, worker: str) -> None:
    """End an evaluation that nobody can run."""
    ownership = await Ownership.take(bus, task.org, task.job_id, worker=worker, term=task.term)
    if ownership is not None:
        await ownership.end(ending)


async def _wait_until_served(bus: Connection, history: JobHistory, term: int) -> JobFailed | None:
    """Wait for the model: a job that lacks an engine has not started, and the gateway reports the reason of the wait.

    Returns how the job fails if its model is refused; None once it is served, or once the job is over.
    """
    status = JobStatus()
    facts = ("policy.loaded", "policy.refused", "job.*")
    subjects = [f"{fact}.{history.org}.{history.job_id}" for fact in facts]
    async with aclosing(follow(bus, subjects)) as events:
        async for recorded in events:
            of_this_term = recorded.seq > history.since
            match recorded.event:
                case PolicyLoaded():
                    if of_this_term:
                        return None
                case PolicyRefused() as refused:
                    if of_this_term:
                        return failure_of(refused)
                case _:
                    status.add(recorded.type)
                    if status.is_over(term):
                        return None
    raise AssertionError("a follow never ends")


async def _evaluate(context: CollectionContext, job: EvalJob) -> Event:
    await context.event_log.read()
    done = context.event_log.evaluation(0) or await _collect(context, job)
    if isinstance(done, EnvironmentBroken):
        return JobFailed(code=done.code, problem=done.problem)
    return JobSucceeded(steps=0, values=done.values)


async def _collect(context: CollectionContext, job: EvalJob) -> EvalCompleted | EnvironmentBroken:
    request = CollectRequest(
        iteration=0, mode="eval", seeds=job.seeds, group_size=job.rollouts_per_seed, oldest_version=0
    )
    result = await context.collector.collect(request, await context.event_log.prior_progress(request))
    if isinstance(result, EnvironmentBroken):
        return result
    values = evaluation_metrics(
        result.rollouts,
        failed=result.failed,
        rewards=job.rewards,
        rollouts_per_seed=job.rollouts_per_seed,
        success_threshold=job.success_threshold,
    )
    done = EvalCompleted(
        model=job.model,
        instances=len(result.rollouts),
        values=values,
        rollouts_per_seed=job.rollouts_per_seed,
        success_threshold=job.success_threshold,
    )
    await context.event_log.publish_evaluation(done)
    return done

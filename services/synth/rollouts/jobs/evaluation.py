"""An evaluation job: its collector owns it, from the moment its model is served to its end or its pause."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory, append_as_owner, start_attempt
from synth.bus.publish import Fence
from synth.errors import Permanent, Problem
from synth.events import (
    EvalCompleted,
    JobCancelled,
    JobFailed,
    JobPaused,
    JobPauseRequested,
    JobSucceeded,
    PolicyLoaded,
    PolicyRefused,
)
from synth.events.catalogue import Event
from synth.jobs.lifecycle import Standing, State
from synth.jobs.resolved import EvalJob
from synth.rollouts.collection.batching import collection_values
from synth.rollouts.collection.types import CollectRequest, EnvironmentBroken
from synth.rollouts.jobs.context import CollectionContext
from synth.work import Task


async def evaluate(context: CollectionContext, job: EvalJob) -> None:
    """Run an evaluation to its end (success, failure with its cause, or cancellation), or until it is paused."""
    obstacle = await _until_served(context)
    org, job_id, worker = context.history.org, context.history.job_id, context.settings.replica
    history, fence = await start_attempt(context.bus, org, job_id, worker=worker, term=context.term)
    if fence is None:
        return
    if obstacle is not None or history.state in (State.CANCELLING, State.PAUSING):
        await _end(context.bus, fence, obstacle or JobPaused(step=0))
        return
    work = asyncio.create_task(_play_once(context, job))
    interrupted = asyncio.create_task(_interruption(context))
    try:
        await asyncio.wait([work, interrupted], return_when=asyncio.FIRST_COMPLETED)
        ending = work.result() if work.done() else interrupted.result()
    finally:
        for task in (work, interrupted):
            task.cancel()
        await asyncio.gather(work, interrupted, return_exceptions=True)
    await _end(context.bus, fence, ending)


async def fail(bus: Connection, task: Task, ending: JobFailed, worker: str) -> None:
    """End an evaluation that nobody can run."""
    _, fence = await start_attempt(bus, task.org, task.job_id, worker=worker, term=task.term)
    if fence is not None:
        await _end(bus, fence, ending)


async def _until_served(context: CollectionContext) -> JobFailed | None:
    """Wait for the model: a job that lacks an engine has not started, and the gateway says what it waits for."""
    standing = Standing()
    async with aclosing(context.follow("policy.loaded", "policy.refused", "job.*")) as events:
        async for recorded in events:
            of_this_term = recorded.seq > context.history.since
            match recorded.event:
                case PolicyLoaded():
                    if of_this_term:
                        return None
                case PolicyRefused(problem=problem):
                    if of_this_term:
                        return JobFailed(code="cannot_serve", problem=problem)
                case _:
                    standing.add(recorded.type)
                    if standing.is_over(context.term):
                        return None
    raise AssertionError("a follow never ends")


async def _interruption(context: CollectionContext) -> Event:
    """Wait for a reason to stop before the end."""
    facts = ("job.cancel_requested", "job.pause_requested", "policy.refused")
    async with aclosing(context.follow(*facts)) as events:
        async for recorded in events:
            if recorded.seq < context.history.since:
                continue
            match recorded.event:
                case PolicyRefused(problem=problem):
                    return JobFailed(code="cannot_serve", problem=problem)
                case JobPauseRequested():
                    return JobPaused(step=0)
                case _:
                    return JobCancelled(step=0)
    raise AssertionError("a follow never ends")


async def _play_once(context: CollectionContext, job: EvalJob) -> Event:
    try:
        await context.event_log.read()
        done = context.event_log.evaluation(0) or await _collect_rollouts(context, job)
    except Permanent as error:
        return JobFailed(code="cannot_run", problem=Problem(what=str(error)))
    if isinstance(done, EnvironmentBroken):
        return JobFailed(code="task_app_failed", problem=done.problem)
    return JobSucceeded(steps=0, values=done.values)


async def _collect_rollouts(context: CollectionContext, job: EvalJob) -> EvalCompleted | EnvironmentBroken:
    request = CollectRequest(iteration=0, mode="eval", seeds=job.seeds, group_size=1, oldest_version=0)
    result = await context.collector.collect(request, await context.event_log.prior_progress(request))
    if isinstance(result, EnvironmentBroken):
        return result
    values = collection_values(result.rollouts, failed=result.failed)
    done = EvalCompleted(model=job.model, instances=len(result.rollouts), values=values)
    await context.event_log.publish_evaluation(done)
    return done


async def _end(bus: Connection, fence: Fence, ending: Event) -> None:
    def unless_ended(history: JobHistory) -> Event | None:
        if history.ended:
            return None
        return JobCancelled(step=0) if history.state is State.CANCELLING else ending

    await append_as_owner(bus, fence, unless_ended)

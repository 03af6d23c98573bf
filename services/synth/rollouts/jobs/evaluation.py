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
from synth.jobs.lifecycle import JobStatus, State
from synth.jobs.resolved import EvalJob
from synth.rollouts.collection.batching import collection_values
from synth.rollouts.collection.types import Broken, Request
from synth.rollouts.jobs.context import Collection
from synth.work import Task


async def evaluate(collection: Collection, job: EvalJob) -> None:
    """Run an evaluation to its end (success, failure with its cause, or cancellation), or until it is paused."""
    obstacle = await _until_served(collection)
    org, job_id, worker = collection.history.org, collection.history.job_id, collection.settings.replica
    history, fence = await start_attempt(collection.bus, org, job_id, worker=worker, term=collection.term)
    if fence is None:
        return
    if obstacle is not None or history.state in (State.CANCELLING, State.PAUSING):
        await _end(collection.bus, fence, obstacle or JobPaused(step=0))
        return
    work = asyncio.create_task(_play(collection, job))
    interrupted = asyncio.create_task(_interruption(collection))
    try:
        await asyncio.wait([work, interrupted], return_when=asyncio.FIRST_COMPLETED)
        ending = work.result() if work.done() else interrupted.result()
    finally:
        for task in (work, interrupted):
            task.cancel()
        await asyncio.gather(work, interrupted, return_exceptions=True)
    await _end(collection.bus, fence, ending)


async def fail(bus: Connection, task: Task, ending: JobFailed, worker: str) -> None:
    """End an evaluation that nobody can run."""
    _, fence = await start_attempt(bus, task.org, task.job_id, worker=worker, term=task.term)
    if fence is not None:
        await _end(bus, fence, ending)


async def _until_served(collection: Collection) -> JobFailed | None:
    """Wait for the model: a job that lacks an engine has not started, and the gateway says what it waits for."""
    standing = JobStatus()
    async with aclosing(collection.follow("policy.loaded", "policy.refused", "job.*")) as events:
        async for recorded in events:
            of_this_term = recorded.seq > collection.history.since
            match recorded.event:
                case PolicyLoaded():
                    if of_this_term:
                        return None
                case PolicyRefused(problem=problem):
                    if of_this_term:
                        return JobFailed(code="cannot_serve", problem=problem)
                case _:
                    standing.add(recorded.type)
                    if standing.is_over(collection.term):
                        return None
    raise AssertionError("a follow never ends")


async def _interruption(collection: Collection) -> Event:
    """Wait for a reason to stop before the end."""
    facts = ("job.cancel_requested", "job.pause_requested", "policy.refused")
    async with aclosing(collection.follow(*facts)) as events:
        async for recorded in events:
            if recorded.seq < collection.history.since:
                continue
            match recorded.event:
                case PolicyRefused(problem=problem):
                    return JobFailed(code="cannot_serve", problem=problem)
                case JobPauseRequested():
                    return JobPaused(step=0)
                case _:
                    return JobCancelled(step=0)
    raise AssertionError("a follow never ends")


async def _play(collection: Collection, job: EvalJob) -> Event:
    try:
        await collection.record.read()
        done = collection.record.evaluation(0) or await _collect(collection, job)
    except Permanent as error:
        return JobFailed(code="cannot_run", problem=Problem(what=str(error)))
    if isinstance(done, Broken):
        return JobFailed(code="task_app_failed", problem=done.problem)
    return JobSucceeded(steps=0, values=done.values)


async def _collect(collection: Collection, job: EvalJob) -> EvalCompleted | Broken:
    request = Request(iteration=0, mode="eval", seeds=job.seeds, group_size=1, oldest_version=0)
    result = await collection.collector.collect(request, await collection.record.before(request))
    if isinstance(result, Broken):
        return result
    values = collection_values(result.rollouts, failed=result.failed)
    done = EvalCompleted(model=job.model, instances=len(result.rollouts), values=values)
    await collection.record.evaluated(done)
    return done


async def _end(bus: Connection, fence: Fence, ending: Event) -> None:
    def unless_ended(history: JobHistory) -> Event | None:
        if history.ended:
            return None
        return JobCancelled(step=0) if history.state is State.CANCELLING else ending

    await append_as_owner(bus, fence, unless_ended)

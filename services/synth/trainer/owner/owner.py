"""The owner of one train task: takes the attempt, watches for the job's end, and ends the job."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

import structlog

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory, append_as_owner, start_attempt
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import follow
from synth.bus.worker import Lease
from synth.errors import Permanent, Problem, SynthError, Transient
from synth.events import (
    JobCancelled,
    JobFailed,
    JobPaused,
    JobPauseRequested,
    JobStarted,
    JobValidated,
    PolicyRefused,
    RolloutBlocked,
    TrainHandedBack,
)
from synth.events.catalogue import Event
from synth.jobs.lifecycle import State
from synth.jobs.resolved import RlJob, SftJob, job_from_data
from synth.runtime import logs
from synth.trainer.owner.attempt import Attempt, JobFailure, Train
from synth.trainer.owner.history import AttemptHistory, read_history
from synth.trainer.owner.learner_process import LearnerStopped
from synth.trainer.settings import TrainerSettings
from synth.work import Task

log = logs.get("train")


@dataclass(frozen=True)
class TrainerService:
    """What every train task of this process shares. train: runs an attempt to its success, or until it is paused."""

    bus: Connection
    blobs: BlobStore
    settings: TrainerSettings
    train: Train

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one train task until its job has ended or is paused."""
        with structlog.contextvars.bound_contextvars(job=task.job_id):
            history, fence = await self._start(task)
            if fence is None:
                return
            with structlog.contextvars.bound_contextvars(attempt=fence.attempt):
                await self._attempt(history, fence, lease)

    async def give_up(self, task: Task, reason: str) -> None:
        """The task is a dead letter: end its job, so that nobody waits for it in silence."""
        _, fence = await self._start(task)
        if fence is not None:
            announced = await read_history(self.bus, fence.org, fence.job_id)
            problem = Problem(what=f"the trainer cannot run this job: {reason}", fix="look at the trainer's log")
            await self._end(fence, JobFailed(code="internal", problem=problem), announced)

    async def _start(self, task: Task) -> tuple[JobHistory, Fence | None]:
        worker = self.settings.replica
        return await start_attempt(self.bus, task.org, task.job_id, worker=worker, term=task.term)

    async def _attempt(self, history: JobHistory, fence: Fence, lease: Lease) -> None:
        lease.progress("read the log", deadline=60)
        announced = await read_history(self.bus, fence.org, fence.job_id)
        work_dir = self.settings.work_dir / fence.job_id / f"attempt-{fence.attempt}"
        # An attempt that did not live to end as it was told to: there is nothing else left to do.
        if history.state is State.CANCELLING:
            await self._end(fence, JobCancelled(step=announced.last_step), announced)
            return
        if history.state is State.PAUSING:
            await self._end(fence, JobPaused(step=announced.last_step), announced)
            return
        job = job_from_data(history.need(JobValidated).job)
        assert isinstance(job, RlJob | SftJob)
        attempt = Attempt(self.bus, self.blobs, self.settings, history, fence, announced, lease, work_dir)
        try:
            self._check_crashes(history, announced)
            ending: Event = await self._until_stopped(attempt, job)
        except JobFailure as failure:
            log.error("job fails", code=failure.code, reason=failure.problem.text())
            ending = JobFailed(code=failure.code, problem=failure.problem)
        except Permanent as error:
            ending = JobFailed(code="cannot_run", problem=Problem(what=str(error)))
        except LearnerStopped:
            raise
        except (Transient, asyncio.CancelledError) as reason:
            await self._hand_back(fence, reason)
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, work_dir, ignore_errors=True)
        await self._end(fence, ending, announced)

    async def _hand_back(self, fence: Fence, reason: BaseException) -> None:
        """Say that this attempt ends in good order, so that it does not count as a crash."""
        why = str(reason) or "the trainer was asked to stop"
        event = TrainHandedBack(attempt=fence.attempt, reason=why)
        try:
            async with asyncio.timeout(2):
                await Publisher(self.bus).fenced(event, fence=fence, id=str(fence.attempt))
        except (TimeoutError, SynthError) as error:
            log.warning("cannot say that the attempt is handed back", error=str(error))

    def _check_crashes(self, history: JobHistory, announced: AttemptHistory) -> None:
        """Give up when attempt after attempt dies without a new checkpoint."""
        since = announced.checkpoint.attempt if announced.checkpoint else 0
        # In good order: handed back, or followed by the pause that it ended with.
        facts = [f.event for f in history.facts if isinstance(f.event, JobStarted | JobPaused)]
        paused = {a.attempt for a, b in pairwise(facts) if isinstance(a, JobStarted) and isinstance(b, JobPaused)}
        started = {s.attempt for s in facts if isinstance(s, JobStarted) and s.attempt > since}
        fruitless = len(started - paused - announced.handed_back)
        fruitless -= 1  # the one that has just started
        if fruitless >= self.settings.crashes:
            raise JobFailure(
                "trainer_crashed",
                Problem(
                    what=f"{fruitless} attempts in a row ended before step {announced.last_step + 1} was saved",
                    expected="an attempt to reach its next checkpoint",
                    fix="look at the trainer's log for what killed the training process; memory is the usual cause",
                ),
            )

    async def _until_stopped(self, attempt: Attempt, job: RlJob | SftJob) -> Event:
        training = asyncio.ensure_future(self.train(attempt, job))
        interrupted = asyncio.create_task(_interruption(attempt))
        overdue = asyncio.create_task(_overdue(attempt.pausing, self.settings.pause_s))
        tasks = (training, interrupted, overdue)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                return training.result()
            training.cancel()
            await asyncio.wait([training])
            ending = interrupted.result() if interrupted.done() else None
            if isinstance(ending, JobFailed):
                return ending
            step = attempt.announced.last_step
            return JobPaused(step=step) if ending is None else JobCancelled(step=step)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, fence: Fence, ending: Event, announced: AttemptHistory) -> None:
        def decide(history: JobHistory) -> Event | None:
            if history.ended:
                return None
            # A cancellation that came while we were finishing wins: the user was told that it would.
            if history.state is State.CANCELLING and not isinstance(ending, JobFailed | JobCancelled):
                return JobCancelled(step=announced.last_step)
            return ending

        await append_as_owner(self.bus, fence, decide)


async def _overdue(pausing: asyncio.Event, seconds: float) -> None:
    """Return when a pause has been asked for and so much time has passed since."""
    await pausing.wait()
    await asyncio.sleep(seconds)
    log.warning("the pause takes too long, letting go of the job as it was", seconds=seconds)


async def _interruption(attempt: Attempt) -> JobFailed | JobCancelled:
    """Wait for a reason to stop: the user's cancellation, a broken environment, a policy that cannot be served.

    A pause is passed on, and is none: the run may well come to its end first.
    """
    fence, since = attempt.fence, attempt.history.since
    facts = ("job.cancel_requested", "job.pause_requested", "rollout.blocked", "policy.refused")
    subjects = [f"{fact}.{fence.org}.{fence.job_id}" for fact in facts]
    async with aclosing(follow(attempt.bus.nc, subjects, after=since)) as events:
        async for recorded in events:
            match recorded.event:
                case JobPauseRequested():
                    attempt.pausing.set()
                case RolloutBlocked(problem=problem):
                    return JobFailed(code="task_app_failed", problem=problem)
                case PolicyRefused(problem=problem):
                    return JobFailed(code="cannot_serve", problem=problem)
                case _:
                    return JobCancelled(step=0)
    raise AssertionError("a follow never ends")

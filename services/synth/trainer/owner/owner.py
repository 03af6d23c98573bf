"""Owns train tasks: starts an attempt at the job, runs it, and announces how it ends."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from synth.blobs import BlobStore, StoreAbsent
from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory
from synth.bus.history.ownership import Ownership
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.bus.tasks.lease import Lease
from synth.errors import Problem, SynthError, Transient
from synth.events import CheckpointSaved, JobFailed, JobPaused, JobValidated, TrainHandedBack
from synth.events.catalogue import subject_of
from synth.methods.job import job_from_data
from synth.runtime import logs
from synth.trainer.owner.attempt import Attempt, Train
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.history import read_history
from synth.trainer.owner.learner_config import trainer_device
from synth.trainer.settings import TrainerSettings
from synth.work import Task

log = logs.get("train")


@dataclass(frozen=True)
class TrainTaskOwner:
    """The parts that all train tasks of this process share. train: runs an attempt until it succeeds or is paused."""

    bus: Connection
    blobs: BlobStore
    settings: TrainerSettings
    train: Train

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one train task until its job has ended or is paused."""
        ownership = await self._take(task, devices=self._devices)
        if ownership is None:
            return
        with structlog.contextvars.bound_contextvars(attempt=ownership.fence.attempt):
            await self._run_attempt(ownership, lease)

    async def give_up(self, task: Task, reason: str) -> None:
        """End the job of a task that is a dead letter, so that no client waits for it for ever.

        A job with a checkpoint is paused: when the cause is removed, it continues from there.
        """
        ownership = await self._take(task, devices=lambda _: 0)
        if ownership is None:
            return
        problem = Problem(what=f"the trainer cannot run this job: {reason}", fix="look at the trainer's log")
        saved = await replay(self.bus, [subject_of(CheckpointSaved, task.org, task.job_id)], last_per_subject=True)
        if saved and isinstance(saved[-1].event, CheckpointSaved):
            await ownership.end(JobPaused(step=saved[-1].event.step, reason=problem.text()))
        else:
            await ownership.end(JobFailed(code="trainer_crashed", problem=problem))

    async def _take(self, task: Task, *, devices: Callable[[JobHistory], int]) -> Ownership | None:
        worker = self.settings.replica
        return await Ownership.take(self.bus, task.org, task.job_id, worker=worker, term=task.term, devices=devices)

    def _devices(self, history: JobHistory) -> int:
        job = job_from_data(history.need(JobValidated).job).training
        assert job is not None
        return min(trainer_device(self.settings).ranks_of(job), self.settings.max_world_size)

    async def _run_attempt(self, ownership: Ownership, lease: Lease) -> None:
        history, fence = ownership.history, ownership.fence
        lease.progress("read the log", deadline=60)
        validated = history.need(JobValidated)
        announced = await read_history(self.bus, fence.org, fence.job_id, continues=validated.continues)
        requested = ownership.requested_ending(step=announced.last_step)
        if requested is not None:
            await ownership.end(requested, step=announced.last_step)
            return
        work_dir = self.settings.work_dir / fence.job_id / f"attempt-{fence.attempt}"
        job = job_from_data(validated.job).training
        assert job is not None
        attempt = Attempt(self.bus, self.blobs, self.settings, history, fence, announced, lease, work_dir)
        try:
            ending = await ownership.run(
                self.train(attempt, job),
                last_step=lambda: announced.last_step,
                pausing=attempt.pausing,
                pause_s=self.settings.pause_s,
            )
        except JobFailure as failure:
            log.error("job fails", code=failure.code, reason=failure.problem.text())
            ending = JobFailed(code=failure.code, problem=failure.problem, verdict=failure.verdict)
        except StoreAbsent as absent:
            if absent.for_s < self.settings.store_absent_s:
                await self._hand_back(fence, absent)
                raise
            ending = JobPaused(step=announced.last_step, reason=_absent_too_long(absent))
        except (Transient, asyncio.CancelledError) as reason:
            await self._hand_back(fence, reason)
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, work_dir, ignore_errors=True)
        await ownership.end(ending, step=announced.last_step)

    async def _hand_back(self, fence: Fence, reason: BaseException) -> None:
        """Announce that this attempt ends in good order, so that it does not count as a crash."""
        why = str(reason) or "the trainer was stopped"
        event = TrainHandedBack(attempt=fence.attempt, reason=why)
        try:
            async with asyncio.timeout(2):
                await Publisher(self.bus).fenced(event, fence=fence, id=str(fence.attempt))
        except (TimeoutError, SynthError) as error:
            log.warning("cannot say that the attempt is handed back", error=str(error))


def _absent_too_long(absent: StoreAbsent) -> str:
    waited = f"the trainer waited for {absent.for_s:.0f} s (SYNTH_STORE_ABSENT_S)"
    return f"{absent}; {waited}; mount it, then resume the job"

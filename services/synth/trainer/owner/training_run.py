"""The training run of an attempt. It starts the learner at the end of the log, feeds it, and announces its results."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from synth.bus.publish import Publisher
from synth.errors import Transient
from synth.estimates.verdict import Verdict
from synth.events import (
    BlobRef,
    DataProgress,
    JobPaused,
    JobSucceeded,
    JobVerified,
    ModelRef,
    TrainWarned,
)
from synth.methods.base import TrainingJob
from synth.methods.rl import RlJob
from synth.models import checkpoint_name
from synth.runtime import logs
from synth.trainer.collapse.learning_signal import NO_LEARNING_SIGNAL
from synth.trainer.errors import CHECKPOINT_FAILED, NO_TURN
from synth.trainer.owner.announcer import Announcer
from synth.trainer.owner.attempt import Attempt
from synth.trainer.owner.checkpoint_retention import steps_to_keep
from synth.trainer.owner.collapse_watch import CollapseWatch
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.learner_config import build_start
from synth.trainer.owner.processes.learner_process import LearnerPool, LearnerProcess, LearnerStopped
from synth.trainer.owner.provisional_steps import ProvisionalSteps
from synth.trainer.owner.rollout_feed import RolloutFeed
from synth.trainer.owner.verdict import explain_validation, read_verdict
from synth.trainer.protocol import (
    TOKENISE,
    Done,
    Failed,
    Finish,
    Pause,
    Paused,
    Progressed,
    Ready,
    Stepped,
    Stored,
    TrainBatch,
)
from synth.weights.local_model import adapter_base, training_source

log = logs.get("training")

_M = TypeVar("_M", bound=Ready | Stepped | Paused | Done)
_T = TypeVar("_T")

#: The margin between the ends of a silent training process and of its task, so that the task can report the error.
_MARGIN_S = 30.0

#: The time between an attempt that did not get its device and the next one.
_NO_TURN_DELAY_S = 5.0


async def train(attempt: Attempt, job: TrainingJob, learners: LearnerPool) -> JobSucceeded | JobPaused:
    """Run an attempt until it succeeds or is paused, and announce its results.

    Raises `JobFailure` if training cannot continue, `LearnerStopped` on a crash.
    """
    async with learners.acquire() as learner:
        settings = attempt.settings
        provisional = ProvisionalSteps(
            Publisher(attempt.bus), attempt.fence, every_s=settings.progress_s, ttl_s=settings.progress_ttl_s
        )
        showing = asyncio.create_task(provisional.run())
        try:
            run = await _TrainingRun.open(attempt, job, learner, provisional)
            done = await run.while_checkpoints_are_stored(_train(run))
        finally:
            showing.cancel()
            [ended] = await asyncio.gather(showing, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("steps were no longer shown as they happened", exc_info=ended)
        if isinstance(done, Paused):
            return JobPaused(step=attempt.announced.last_step, reason=_pause_reason(run))
        return await _publish_model(run, done)


@dataclass
class _TrainingRun:
    attempt: Attempt
    job: TrainingJob
    learner: LearnerProcess
    ready: Ready
    announcer: Announcer
    verified: JobVerified
    values: dict[str, float]
    rl: RlJob | None
    watch: CollapseWatch | None
    provisional: ProvisionalSteps
    reason: str = ""
    """Why the job succeeds, if it has not simply done all of its steps."""
    verdict: Verdict | None = None

    @classmethod
    async def open(
        cls, attempt: Attempt, job: TrainingJob, learner: LearnerProcess, provisional: ProvisionalSteps
    ) -> _TrainingRun:
        """Start the learner at the last checkpoint, and announce the resume."""
        settings, lease, announced = attempt.settings, attempt.lease, attempt.announced
        lease.progress("fetch the model", deadline=settings.model_io_s)
        verified = attempt.history.need(JobVerified)
        cache = settings.work_dir / "cache"
        models = cache / "models"
        source = await training_source(verified.source, job.lora_shape, attempt.blobs, models, hub=settings.model_hub)
        start = await build_start(attempt, job, verified, source, provisional)
        lease.progress("start", deadline=settings.silence_s("") + _MARGIN_S)

        def alive(progressed: Progressed) -> None:
            lease.progress(progressed.stage, deadline=settings.silence_s(progressed.stage) + _MARGIN_S)
            if progressed.stage == TOKENISE:
                provisional.set_data(DataProgress(stage="tokenise", done=progressed.done, of=progressed.of))

        await learner.start_job(start, progress=alive)
        ready = await _recv(learner, settings.silence_s, Ready)
        fence = attempt.fence

        def model_at(step: int, tree: BlobRef) -> ModelRef:
            return _model_ref(job, verified.source, job.result_id(fence.job_id, checkpoint=checkpoint_name(step)), tree)

        rl = job if isinstance(job, RlJob) else None
        watch = None if rl is None else CollapseWatch(attempt.bus, fence, rl)
        if watch is not None:
            await watch.catch_up()
        provisional.total = ready.total
        announcer = Announcer(
            attempt.bus,
            attempt.blobs,
            fence,
            announced,
            total=ready.total,
            model_at=model_at,
            watch=watch,
            provisional=provisional,
        )
        reports = {k: announced.batch_values(k) | values for k, values in ready.reports.items()}
        await announcer.delete_expired_blobs()
        if announced.checkpoint is not None:
            await announcer.announce_resume(ready, reports)
        if announced.continues is not None and job.play is not None:
            await announcer.announce_continued_policy(announced.continues, attempt.work_dir)
        log.info("training", step=ready.step, of=ready.total, resumed=announced.checkpoint is not None)
        values = reports.get(ready.step, {})
        return cls(attempt, job, learner, ready, announcer, verified, values, rl, watch, provisional)

    async def wait_unless_paused(self, waiting: Coroutine[Any, Any, _T]) -> _T:
        """Wait for `waiting` while the learner lives and no pause is requested.

        Raises `LearnerStopped`, `_PauseRequested`.
        """
        wait = asyncio.create_task(waiting)
        died = asyncio.create_task(self.learner.wait_stopped())
        pause_requested = asyncio.create_task(self.attempt.pausing.wait())
        tasks = (wait, died, pause_requested)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if pause_requested.done():
                raise _PauseRequested
            if wait.done():
                return wait.result()
            await self.recv()  # raises the error with which it ended
            raise AssertionError("unreachable")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def while_checkpoints_are_stored(self, training: Coroutine[Any, Any, _T]) -> _T:
        """Wait for the end of training, and store the checkpoints that the learner saves meanwhile.

        A checkpoint that cannot be stored ends training.
        """
        trains = asyncio.create_task(training)
        stores = asyncio.create_task(self._store_checkpoints())
        try:
            await asyncio.wait([trains, stores], return_when=asyncio.FIRST_COMPLETED)
            if stores.done():
                stores.result()
            return await trains
        except JobFailure:
            # Checkpoints that were saved before the failure belong to the user.
            stored = asyncio.create_task(self.all_stored())
            await asyncio.wait([stored, stores], return_when=asyncio.FIRST_COMPLETED)
            stored.cancel()
            raise
        finally:
            for task in (trains, stores):
                task.cancel()
            await asyncio.gather(trains, stores, return_exceptions=True)

    async def _store_checkpoints(self) -> None:
        keep = functools.partial(
            steps_to_keep, keep=self.job.checkpoints_kept, evaluated_every=self.job.evaluated_every
        )
        limit = self.attempt.settings.model_io_s
        while (written := await self.learner.saved.get()) is not None:
            self.attempt.lease.allow(limit + _MARGIN_S)
            try:
                async with asyncio.timeout(limit):
                    await self.announcer.store_checkpoint(written, keep=keep)
            except TimeoutError as error:
                what = f"the checkpoint of step {written.step} was not stored within {limit:.0f} s (SYNTH_MODEL_IO_S)"
                raise LearnerStopped(what) from error
            await self.attempt.lease.advanced()
            self.learner.saved.task_done()
            with contextlib.suppress(LearnerStopped):  # it may have ended, and need no answer
                await self.learner.send(Stored(step=written.step))
        self.learner.saved.task_done()

    async def save_what_is_trained(self) -> None:
        """Have the learner save its last step before the job fails for a reason that is not the learner's."""
        with contextlib.suppress(JobFailure, LearnerStopped):  # it has ended, and the job fails for its reason
            await self.learner.send(Pause())
            await self.recv(Paused)

    async def all_stored(self) -> None:
        """Return when every checkpoint that the learner has announced is stored."""
        self.attempt.lease.progress("publish", deadline=self.attempt.settings.model_io_s)
        await self.learner.saved.join()

    async def recv(self, *kinds: type[_M]) -> _M:
        """Return the next message of the learner, of one of these kinds."""
        settings = self.attempt.settings
        self.attempt.lease.progress("train", deadline=settings.silence_s("") + _MARGIN_S)
        return await _recv(self.learner, settings.silence_s, *kinds)

    def raise_for_collapse(self) -> None:
        """Raise `_PauseRequested` if a warning of the collapse watch pauses the job. A checkpoint is saved first."""
        if self.demand is not None and self.demand.action == "pause":
            raise _PauseRequested

    @property
    def demand(self) -> TrainWarned | None:
        """The action that the collapse watch demands of the job."""
        return None if self.watch is None else self.watch.demand

    async def reason_of_end(self) -> str:
        """Return why the job succeeds, "" if it has done all its steps; announce its policy if nothing was trained.

        Call it when the last step is announced.

        Raises `JobFailure` if no step has changed the policy and the policy did not earn the most either.
        """
        warned = self.demand
        if warned is None and self.watch is not None:
            warned = await self.watch.announce_end(self.attempt.announced.last_step)
        if warned is None:
            return ""
        if warned.action == "stop":
            raise JobFailure(NO_LEARNING_SIGNAL, warned.problem, verdict=self.verdict)
        return f"{warned.rule}: {warned.problem.what}"


class _PauseRequested(Exception):
    """The user or the collapse watch requests a pause while training waits for something that may take long."""


def _pause_reason(run: _TrainingRun) -> str:
    """Return the reason of a pause, "" if the user requested it.

    Raises `JobFailure` if the collapse watch stops the job.
    """
    demand = run.demand
    if demand is None or demand.action == "finish":
        return ""
    if demand.action == "stop":
        code = NO_LEARNING_SIGNAL if demand.rule == NO_LEARNING_SIGNAL else "collapsed"
        raise JobFailure(code, demand.problem, verdict=run.verdict)
    return demand.problem.text()


async def _train(run: _TrainingRun) -> Done | Paused:
    ending = await (_train_file(run) if run.rl is None else _train_rl(run, run.rl))
    await run.all_stored()
    return ending


async def _train_file(run: _TrainingRun) -> Done | Paused:
    forward_pause = asyncio.create_task(_forward_pause(run))
    try:
        while isinstance(message := await run.recv(Stepped, Paused, Done), Stepped):
            run.values = message.values
            run.attempt.lease.progress("publish", deadline=run.attempt.settings.model_io_s)
            await run.announcer.announce_step(message, message.values, kind=run.job.weights_kind)
        if isinstance(message, Done) and message.verdict is not None:
            run.verdict = explain_validation(message.verdict, run.job, run.values)
        return message
    finally:
        forward_pause.cancel()
        await asyncio.gather(forward_pause, return_exceptions=True)


async def _forward_pause(run: _TrainingRun) -> None:
    await run.attempt.pausing.wait()
    await run.learner.send(Pause())


async def _train_rl(run: _TrainingRun, job: RlJob) -> Done | Paused:
    feed = RolloutFeed(run.attempt, job, run.announcer)
    try:
        run.raise_for_collapse()
        # Step 0 is the source model, which the steps after it are compared with. At a later step, the previous attempt
        # may have died between the step and the request of its evaluation.
        await feed.request_evaluation(run.ready.step)
        last_step = run.ready.step
        for k in range(run.ready.step + 1, job.iterations + 1):
            if run.demand is not None:
                # The policy has solved its last seeds, or it collapsed: rollouts collected ahead are not trained.
                break
            await feed.request_up_to(k, stage=run.watch.stage if run.watch is not None else 0)
            waited = time.monotonic()
            path = await run.wait_unless_paused(feed.wait_batch(k))
            waited = time.monotonic() - waited
            await run.learner.send(TrainBatch(iteration=k, batch=str(path)))
            stepped = await run.recv(Stepped)
            published = time.monotonic()
            run.values = run.attempt.announced.batch_values(k) | stepped.values | {"wait_seconds": waited}
            run.attempt.lease.progress("publish", deadline=run.attempt.settings.model_io_s)
            await run.announcer.announce_step(stepped, run.values, kind=job.weights_kind)
            last_step = k
            await feed.request_evaluation(k)
            await run.announcer.expire_weights(keep_versions=job.max_staleness + 2, pinned=feed.pinned_versions())
            log.info("step", step=k, publish_seconds=round(time.monotonic() - published, 4))
            run.raise_for_collapse()
        await feed.request_evaluation(last_step, last=True)
        await run.wait_unless_paused(feed.wait_evaluations())
        run.verdict = await read_verdict(run.attempt, job, last_step)
        if run.demand is not None and run.demand.action == "stop":
            # The job fails, and its last step is saved first.
            raise _PauseRequested
        await run.learner.send(Finish())
        done = await run.recv(Done)
        await run.all_stored()
        run.reason = await run.reason_of_end()
        return done
    except _PauseRequested:
        await run.learner.send(Pause())
        return await run.recv(Paused)
    except JobFailure:
        await run.save_what_is_trained()
        raise
    finally:
        await feed.close()


async def _publish_model(run: _TrainingRun, done: Done) -> JobSucceeded:
    attempt, job = run.attempt, run.job
    attempt.lease.progress("publish the model", deadline=attempt.settings.model_io_s)
    id = job.result_id(attempt.fence.job_id)
    if attempt.announced.model is None:
        tree = await run.announcer.store_model(Path(done.model))
        ref = _model_ref(job, run.verified.source, id, tree)
        await run.announcer.publish_model(ref, kind=done.kind, step=done.best_step)
    return JobSucceeded(steps=done.step, model=id, values=run.values, reason=run.reason, verdict=run.verdict)


def _model_ref(job: TrainingJob, source: ModelRef, id: str, tree: BlobRef) -> ModelRef:
    """Return how the model that a job trains from its source is loaded. tree: the trained weights."""
    shape = job.lora_shape
    return ModelRef(
        id=id,
        kind=job.weights_kind,
        tree=tree,
        base=adapter_base(source, shape) if shape else None,
        lora=shape,
        stand_in=source.stand_in,
    )


async def _recv(learner: LearnerProcess, silence: Callable[[str], float], *kinds: type[_M]) -> _M:
    message = await learner.recv(silence=silence)
    if isinstance(message, Failed) and message.code == NO_TURN:
        raise Transient(message.detail, delay=_NO_TURN_DELAY_S)
    if isinstance(message, Failed) and message.code == CHECKPOINT_FAILED:
        raise LearnerStopped(f"a checkpoint could not be written: {message.detail}")
    if isinstance(message, Failed):
        raise JobFailure(message.code, message.detail)
    assert isinstance(message, kinds)
    return message

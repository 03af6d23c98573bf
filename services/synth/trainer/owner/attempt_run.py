"""An attempt's training run: the process is started where the log left off, fed, and its results announced."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from synth.errors import Problem
from synth.events import BlobRef, JobPaused, JobSucceeded, JobValidated, JobVerified, ModelRef
from synth.jobs.resolved import RlJob, SftJob, continues, lora_shape
from synth.models import checkpoint_name
from synth.runtime import logs
from synth.trainer.collapse.rules import NO_LEARNING_SIGNAL
from synth.trainer.owner.announcer import Announcer, Past
from synth.trainer.owner.checkpoint_retention import kept_checkpoints
from synth.trainer.owner.collapse_watch import Watching
from synth.trainer.owner.learner_config import build_train_config
from synth.trainer.owner.learner_process import TrainingProcess, TrainingProcesses, TrainingStopped
from synth.trainer.owner.owner import Attempt, JobFailure
from synth.trainer.owner.rollout_feed import RolloutFeed
from synth.trainer.protocol import Done, Failed, Finish, Pause, Paused, Ready, Start, Stepped, TrainBatch
from synth.trainer.settings import TrainerSettings
from synth.weights.local_model import LocalModel, training_source

log = logs.get("training")

_M = TypeVar("_M", bound=Ready | Stepped | Paused | Done)
_T = TypeVar("_T")

#: How long hashing and storing a step's weights and checkpoint may take: 100 GB at a slow disk's speed.
_PUBLISH_S = 3600.0


async def train(attempt: Attempt, job: RlJob | SftJob, processes: TrainingProcesses) -> JobSucceeded | JobPaused:
    """Run an attempt to its success, or until it is paused, with all that it made announced.

    Raises `JobFailure` when training cannot go on, `TrainingStopped` on a crash.
    """
    async with processes.one() as child:
        run = await _Run.open(attempt, job, child)
        done = await (_rl(run, job) if isinstance(job, RlJob) else _sft(run, job))
        if isinstance(done, Paused):
            attempt.lease.progress("publish", deadline=_PUBLISH_S)
            await run.announce.paused(done)
            return JobPaused(step=attempt.past.last_step, reason=_reason(run))
        return await _publish_model(run, done)


@dataclass
class _Run:
    attempt: Attempt
    job: RlJob | SftJob
    child: TrainingProcess
    ready: Ready
    announce: Announcer
    verified: JobVerified
    values: dict[str, float]
    watching: Watching | None

    @classmethod
    async def open(cls, attempt: Attempt, job: RlJob | SftJob, child: TrainingProcess) -> _Run:
        """Have the training process begin at the last checkpoint, and announce the resume."""
        settings, lease, past = attempt.settings, attempt.lease, attempt.past
        silence = settings.child_silence_s
        lease.progress("fetch the model", deadline=3600)
        verified = attempt.history.need(JobVerified)
        cache = settings.work_dir / "cache"
        source = await training_source(verified.source, lora_shape(job), attempt.blobs, cache / "models")
        start = await _start_message(attempt, job, verified, source, cache)
        lease.progress("start", deadline=silence)

        def alive(stage: str) -> None:
            lease.progress(stage, deadline=silence)

        await child.begin(start, progress=alive)
        ready = await _hear(child, silence, Ready)
        fence = attempt.fence

        def model_at(step: int, tree: BlobRef) -> ModelRef:
            return _made(job, verified.source, job.result_id(fence.job_id, checkpoint=checkpoint_name(step)), tree)

        watching = Watching(attempt.bus, fence, job) if isinstance(job, RlJob) else None
        if watching is not None:
            await watching.catch_up()
        announce = Announcer(
            attempt.bus, attempt.blobs, fence, past, total=ready.total, model_at=model_at, watching=watching
        )
        reports = {k: _collected(past, k) | values for k, values in ready.reports.items()}
        await announce.expired_again()
        if past.checkpoint is not None:
            await announce.resumed(ready, reports)
        log.info("training", step=ready.step, of=ready.total, resumed=past.checkpoint is not None)
        return cls(attempt, job, child, ready, announce, verified, reports.get(ready.step, {}), watching)

    async def unless_paused(self, waiting: Coroutine[Any, Any, _T]) -> _T:
        """Wait for something else, but not past the end of the training process, nor past the wish for a pause.

        Raises `TrainingStopped`, `_PauseAsked`.
        """
        wait = asyncio.create_task(waiting)
        died = asyncio.create_task(self.child.ended())
        asked = asyncio.create_task(self.attempt.pausing.wait())
        tasks = (wait, died, asked)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                raise _PauseAsked
            if wait.done():
                return wait.result()
            raise TrainingStopped("the training process ended while it waited for a batch")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def hear(self, *kinds: type[_M]) -> _M:
        """Its next message, of one of these kinds."""
        silence = self.attempt.settings.child_silence_s
        self.attempt.lease.progress("train", deadline=silence)
        return await _hear(self.child, silence, *kinds)

    def heed_the_watch(self) -> None:
        """Raises `_PauseAsked` for a finding that pauses or stops the job: either way, where it stands is saved."""
        if self.watching is not None and self.watching.verdict is not None:
            raise _PauseAsked


class _PauseAsked(Exception):
    """The user wants a pause, and training waits for something that may take long; or the collapse watch wants one."""


def _reason(run: _Run) -> str:
    """Why a run that is saved pauses: "" for the user's wish. Raises `JobFailure` where it is to end instead."""
    warned = run.watching.verdict if run.watching is not None else None
    if warned is None:
        return ""
    if warned.action == "stop":
        raise JobFailure(NO_LEARNING_SIGNAL if warned.rule == NO_LEARNING_SIGNAL else "collapsed", warned.problem)
    return warned.problem.text()


def _collected(past: Past, step: int) -> dict[str, float]:
    """What the collector reported of a step's batch; nothing for SFT."""
    return past.batches[step].values if step in past.batches else {}


async def _sft(run: _Run, job: SftJob) -> Done | Paused:
    every = job.validation_every if job.validation_file is not None else 0
    kept = functools.partial(kept_checkpoints, kept=job.checkpoints_kept, evaluated_every=every)
    asking = asyncio.create_task(_ask_to_pause(run))
    try:
        while isinstance(said := await run.hear(Stepped, Paused, Done), Stepped):
            run.values = said.values
            run.attempt.lease.progress("publish", deadline=_PUBLISH_S)
            await run.announce.stepped(said, said.values, kind=run.job.weights_kind)
            if said.checkpoint is not None:
                await run.announce.expire(keep_versions=0, pinned=set(), kept=kept)
        return said
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _ask_to_pause(run: _Run) -> None:
    await run.attempt.pausing.wait()
    await run.child.say(Pause())


async def _rl(run: _Run, job: RlJob) -> Done | Paused:
    feed = RolloutFeed(run.attempt, job, run.announce)
    every = job.evaluation.every_n_iters if job.evaluation is not None else 0
    kept = functools.partial(kept_checkpoints, kept=job.checkpoints_kept, evaluated_every=every)
    try:
        run.heed_the_watch()
        if run.ready.step:
            # The attempt before may have died between this step and the request of its evaluation.
            await feed.evaluate_after(run.ready.step)
        for k in range(run.ready.step + 1, job.iterations + 1):
            await feed.request_up_to(k)
            waited = time.monotonic()
            batch, path = await run.unless_paused(feed.batch(k))
            waited = time.monotonic() - waited
            await run.child.say(TrainBatch(iteration=k, batch=str(path)))
            stepped = await run.hear(Stepped)
            published = time.monotonic()
            run.values = batch.values | stepped.values | {"wait_seconds": waited}
            run.attempt.lease.progress("publish", deadline=_PUBLISH_S)
            await run.announce.stepped(stepped, run.values, kind=job.weights_kind)
            await feed.evaluate_after(k)
            await run.announce.expire(keep_versions=job.max_staleness + 2, pinned=feed.pinned(), kept=kept)
            log.info("step", step=k, publish_seconds=round(time.monotonic() - published, 4))
            run.heed_the_watch()
        await run.unless_paused(feed.evaluations_done())
        await run.child.say(Finish())
        return await run.hear(Done)
    except _PauseAsked:
        await run.child.say(Pause())
        return await run.hear(Paused)
    finally:
        await feed.close()


def check_ranks(job: RlJob | SftJob, settings: TrainerSettings, *, where: str) -> None:
    """Raise `JobFailure` (too_few_gpus) for a job that asks for more GPUs than train here. where: what asks."""
    asked = job.parallelism.world_size
    if asked is None or settings.device == "cpu" or asked <= settings.most_ranks:
        return
    raise JobFailure(
        "too_few_gpus",
        Problem(
            what=f"the job asks for {asked} GPUs that train, and the trainer has {settings.most_ranks}",
            expected=f"at most {settings.most_ranks}",
            fix="ask for fewer, or leave the number out: all that the trainer has are used then",
            where=where,
        ),
    )


async def _start_message(
    attempt: Attempt, job: RlJob | SftJob, verified: JobVerified, source: LocalModel, cache: Path
) -> Start:
    origins = attempt.history.need(JobValidated).origins
    check_ranks(job, attempt.settings, where=origins["parallelism.world_size"])
    past, blobs, work_dir = attempt.past, attempt.blobs, attempt.work_dir
    (work_dir / "tokens").mkdir(parents=True, exist_ok=True)
    resume = await blobs.fetch_tree(past.checkpoint.tree, work_dir / "resume") if past.checkpoint else None
    files = (verified.training_data, verified.validation_data)
    data = [str(await blobs.fetch(ref, work_dir / f"data-{ref.sha256[:16]}.jsonl")) if ref else None for ref in files]
    return Start(
        kind="rl" if isinstance(job, RlJob) else "sft",
        config=msgspec.to_builtins(build_train_config(job, attempt.settings)),
        model_dir=str(source.model),
        adapter_dir=str(source.adapter) if source.adapter else None,
        work_dir=str(work_dir),
        resume_dir=str(resume) if resume else None,
        dataset=data[0],
        validation=data[1],
        cache_dir=str(work_dir / "tokens"),
    )


async def _publish_model(run: _Run, done: Done) -> JobSucceeded:
    attempt, job = run.attempt, run.job
    attempt.lease.progress("publish the model", deadline=3600)
    id = job.result_id(attempt.fence.job_id)
    if attempt.past.model is None:
        tree = await run.announce.put_model(Path(done.model))
        ref = _made(job, run.verified.source, id, tree)
        await run.announce.model(ref, kind=done.kind, step=done.best_step)
    return JobSucceeded(steps=done.step, model=id, values=run.values)


def _made(job: RlJob | SftJob, source: ModelRef, id: str, tree: BlobRef) -> ModelRef:
    """How what a job makes of its source is loaded."""
    shape = lora_shape(job)
    below = source.base if continues(source, shape) else source
    return ModelRef(
        id=id,
        kind=job.weights_kind,
        tree=tree,
        base=below if shape else None,
        lora=shape,
        stand_in=source.stand_in,
    )


async def _hear(child: TrainingProcess, silence: float, *kinds: type[_M]) -> _M:
    message = await child.hear(silence=silence)
    if isinstance(message, Failed):
        raise JobFailure(message.code, Problem(what=message.detail))
    assert isinstance(message, kinds)
    return message

"""Build the first message to the training process, and check that this trainer can run the job."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from synth.blobs import BlobCorrupt, BlobMissing
from synth.errors import Problem
from synth.events import JobValidated, JobVerified
from synth.jobs.fit import cannot_fit
from synth.jobs.memory import training_memory
from synth.jobs.plan import TrainerDevice
from synth.methods.base import TrainingJob
from synth.models.config_shape import read_shape
from synth.plugins import plugin_refused
from synth.runtime import logs
from synth.trainer.errors import DOES_NOT_FIT
from synth.trainer.machine import Machine
from synth.trainer.owner.attempt import Attempt
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.provisional_steps import ProvisionalSteps
from synth.trainer.protocol import Start, TokenCacheConfig, TurnConfig
from synth.trainer.settings import TrainerSettings
from synth.weights.local_model import LocalModel, adapter_base

log = logs.get("training")


async def build_start(
    attempt: Attempt, job: TrainingJob, verified: JobVerified, source: LocalModel, provisional: ProvisionalSteps
) -> Start:
    """Return the first message to the training process of an attempt, with every file that it names on this machine.

    Raises `JobFailure` for a job that this trainer cannot run.
    """
    origins, settings = attempt.history.need(JobValidated).origins, attempt.settings
    check_world_size(job, settings, where=origins["parallelism.world_size"])
    check_plugins(job, settings)
    check_memory(job, source.model, settings, where=origins["model"])
    work_dir = attempt.work_dir
    work_dir.mkdir(parents=True, exist_ok=True)
    resume = await fetch_checkpoint(attempt)
    files = (verified.training_data, verified.validation_data)
    data = [await attempt.fetch_dataset(ref, provisional.set_data) if ref else None for ref in files]
    if job.vision is not None:
        attempt.lease.progress("fetch the images", deadline=settings.model_io_s)
        for file in data:
            if file is not None:
                await attempt.images.fetch_dataset(Path(file.path), most=job.vision.max_images_per_message)
    below = adapter_base(verified.source, job.lora_shape)
    machine = machine_of(job, settings, adapter_base=below.stand_in or below.id)
    machine = msgspec.structs.replace(machine, threads=threads_of(job, source.model, settings))
    return Start(
        job=msgspec.to_builtins(job),
        machine=msgspec.to_builtins(machine),
        model_dir=str(source.model),
        adapter_dir=str(source.adapter) if source.adapter else None,
        work_dir=str(work_dir),
        resume_dir=str(resume) if resume else None,
        dataset=data[0],
        validation=data[1],
        tokens=TokenCacheConfig(
            folder=str(settings.work_dir / "cache" / "tokens"),
            max_bytes=settings.token_cache_bytes,
            processes=settings.tokenising,
        ),
        turn=_turn(attempt),
        check_memory=settings.trainer_memory_bytes is None,
        where=origins["model"],
        day=attempt.history.created_on,
    )


async def fetch_checkpoint(attempt: Attempt) -> Path | None:
    """Fetch the newest whole checkpoint, from which the attempt continues; None without any.

    Raises `JobFailure` (bad_checkpoint) if every checkpoint is damaged.
    """
    announced, damage = attempt.announced, list[str]()
    if announced.checkpoint is None:
        return None
    newest_first = (announced.checkpoint, *reversed(announced.checkpoints), *announced.continued_checkpoint())
    for saved in {saved.tree.uri: saved for saved in newest_first}.values():
        attempt.lease.progress("fetch the checkpoint", deadline=attempt.settings.model_io_s)
        try:
            folder = await attempt.blobs.fetch_tree(saved.tree, attempt.work_dir / f"resume-{saved.step}")
        except (BlobMissing, BlobCorrupt) as error:
            log.warning("a checkpoint is damaged", step=saved.step, reason=str(error))
            damage.append(f"step {saved.step}: {error}")
            continue
        announced.go_on_from(saved)
        return folder
    what = f"no checkpoint of the job is whole: {'; '.join(damage)}"
    raise JobFailure("bad_checkpoint", what, fix="restore the blob store from a backup, and resume the job")


def _turn(attempt: Attempt) -> TurnConfig | None:
    settings = attempt.settings
    if settings.turn_file is None:
        return None
    return TurnConfig(
        file=str(settings.turn_file),
        turn_s=settings.turn_s,
        wait_s=settings.turn_wait_s,
        job_id=attempt.fence.job_id,
    )


def machine_of(job: TrainingJob, settings: TrainerSettings, *, adapter_base: str | None = None) -> Machine:
    """Return what this machine decides of a job's training."""
    on = trainer_device(settings)
    return Machine(
        device=settings.device,
        dtype=on.dtype_of(job),
        threads=settings.computing,
        deterministic=settings.computes_deterministically,
        checkpoint_bytes=settings.checkpoint_bytes,
        world_size=on.ranks_of(job),
        reference_device=settings.reference_device,
        adapter_base=adapter_base,
    )


def threads_of(job: TrainingJob, model_dir: Path, settings: TrainerSettings) -> int:
    """Return how many threads compute: of the settings, or as many of them as the settings' memory can hold."""
    shape, on = read_shape(model_dir), trainer_device(settings)
    threads = settings.computing
    if shape is None or on.memory is None or on.device == "cuda":
        return threads
    needed = functools.partial(training_memory, job, shape, dtype=on.dtype_of(job), device=on.device)
    while threads > 1 and needed(threads=threads).total > on.memory:
        threads -= 1
    return threads


def check_plugins(job: TrainingJob, settings: TrainerSettings) -> None:
    """Raise `JobFailure` (plugin_failed) for a loss that this trainer may not run, or does not have."""
    loss = job.plugins.get("loss")
    refused = loss and plugin_refused(loss, settings.plugins, where="[training].loss, at the trainer")
    if refused:
        raise JobFailure("plugin_failed", refused)


def trainer_device(settings: TrainerSettings) -> TrainerDevice:
    """Return the devices that train here, as far as the settings name them."""
    return TrainerDevice(
        device=settings.device,
        dtype=settings.dtype,
        ranks=settings.max_world_size,
        memory=settings.trainer_memory_bytes,
    )


def check_memory(job: TrainingJob, model_dir: Path, settings: TrainerSettings, *, where: str) -> None:
    """Raise `JobFailure` (does_not_fit) for a job whose training the devices of the settings cannot hold.

    model_dir: of its base. where: the place in the job's file that names the model.
    """
    shape = read_shape(model_dir)
    problem = None if shape is None else cannot_fit(job, shape, trainer_device(settings), where=where)
    if problem is not None:
        raise JobFailure(DOES_NOT_FIT, problem)


def check_world_size(job: TrainingJob, settings: TrainerSettings, *, where: str) -> None:
    """Raise `JobFailure` (too_few_gpus) if the job requests more GPUs than this trainer has.

    where: the field of the job's file that requests them.
    """
    requested = trainer_device(settings).ranks_of(job)
    if requested <= settings.max_world_size:
        return
    raise JobFailure(
        "too_few_gpus",
        Problem(
            what=f"the job requests {requested} GPUs for training, and the trainer has {settings.max_world_size}",
            expected=f"at most {settings.max_world_size}",
            fix="request fewer, or leave the number out: the job then uses all GPUs of the trainer",
            where=where,
        ),
    )

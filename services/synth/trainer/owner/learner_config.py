"""From a resolved job to what the training process is told: the fields that both know have one name in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from synth.errors import Problem
from synth.jobs.fit import cannot_fit
from synth.jobs.plan import TrainerDevice
from synth.jobs.resolved import RlJob, SftJob
from synth.models.config_shape import read_shape
from synth.trainer.config import RlTrainConfig, SftTrainConfig, TrainConfig
from synth.trainer.errors import DOES_NOT_FIT
from synth.trainer.owner.errors import JobFailure
from synth.trainer.settings import TrainerSettings


def build_train_config(job: RlJob | SftJob, settings: TrainerSettings) -> TrainConfig:
    """The training config of a job on this machine."""
    given: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(job).items() if value is not None}
    given |= {
        "device": settings.device,
        "dtype": settings.dtype,
        "world_size": settings.max_world_size,
        "sharding": job.parallelism.sharding,
        "threads": settings.threads,
        "deterministic": settings.computes_deterministically,
    }
    if settings.device == "cuda":
        given["world_size"] = job.parallelism.world_size or settings.max_world_size
        given["dtype"] = job.parallelism.dtype or settings.dtype
    if job.vision is not None:
        given["max_images_per_message"] = job.vision.max_images_per_message
        given["freeze_vision_tower"] = job.vision.freeze_vision_tower
    kind = RlTrainConfig if isinstance(job, RlJob) else SftTrainConfig
    if isinstance(job, RlJob):
        given["steps"] = job.iterations
        given["reference_device"] = settings.reference_device
        correction = job.correction
        given |= {
            "gates": correction.gates,
            "gate_fresh": correction.on_policy,
            "gate_stale": correction.off_policy,
            "gate_tokens": correction.gate_tokens,
            "rejected": correction.rejected,
        }
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return msgspec.convert({name: value for name, value in given.items() if name in known}, kind)


def trainer_device(settings: TrainerSettings) -> TrainerDevice:
    """What trains here, as far as the settings say."""
    return TrainerDevice(
        device=settings.device,
        dtype=settings.dtype,
        ranks=settings.max_world_size,
        memory=settings.trainer_memory_bytes,
    )


def check_memory(job: RlJob | SftJob, model_dir: Path, settings: TrainerSettings, *, where: str) -> None:
    """Raise `JobFailure` (does_not_fit) for a job whose training the devices of the settings cannot hold.

    model_dir: of its base. where: the place in the job's file that names the model.
    """
    shape = read_shape(model_dir)
    problem = None if shape is None else cannot_fit(job, shape, trainer_device(settings), where=where)
    if problem is not None:
        raise JobFailure(DOES_NOT_FIT, problem)


def check_world_size(job: RlJob | SftJob, settings: TrainerSettings, *, where: str) -> None:
    """Raise `JobFailure` (too_few_gpus) for a job that asks for more GPUs than train here.

    where: the place in the job's file that asks for them.
    """
    world_size = job.parallelism.world_size
    if world_size is None or settings.device == "cpu" or world_size <= settings.max_world_size:
        return
    raise JobFailure(
        "too_few_gpus",
        Problem(
            what=f"the job asks for {world_size} GPUs that train, and the trainer has {settings.max_world_size}",
            expected=f"at most {settings.max_world_size}",
            fix="ask for fewer, or leave the number out: all that the trainer has are used then",
            where=where,
        ),
    )

"""From a resolved job to what the training process is told: the fields that both know have one name in both."""

from __future__ import annotations

from typing import Any

import msgspec

from synth.errors import Problem
from synth.jobs.resolved import RlJob, SftJob
from synth.plugins import is_plugin, plugin_refused
from synth.trainer.config import RlTrainConfig, SftTrainConfig, TrainConfig
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
        "checkpoint_bytes": settings.checkpoint_bytes,
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
        given["evaluated_every"] = job.evaluation.every_n_iters if job.evaluation is not None else 0
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


def check_plugins(job: RlJob | SftJob, settings: TrainerSettings) -> None:
    """Raise `JobFailure` (plugin_failed) for a loss that this trainer may not run, or does not have."""
    if not isinstance(job, RlJob) or not is_plugin(job.loss):
        return
    refused = plugin_refused(job.loss, settings.plugins, where="[training].loss, at the trainer")
    if refused is not None:
        raise JobFailure("plugin_failed", refused)


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

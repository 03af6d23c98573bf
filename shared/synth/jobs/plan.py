"""The plan of a training job in bytes: the memory of each rank and of serving, and the traffic to the blob store."""

from __future__ import annotations

import msgspec

from synth.jobs.memory import Dtype, TrainingMemory, moment_bytes, trained_parameters, training_memory
from synth.methods.base import Device, TrainingJob
from synth.models.memory import WIDTHS, kv_bytes, kv_bytes_per_token
from synth.models.shape import ModelShape


class TrainerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's device: `ranks` processes train a job together, with `memory` bytes each.

    memory: None if unknown. dtype: of the forward, if the job does not set it, or on a CPU.
    """

    device: Device = "cuda"
    dtype: Dtype = "bf16"
    ranks: int = 1
    memory: int | None = None

    def ranks_of(self, job: TrainingJob) -> int:
        """Return how many ranks train a job: on GPUs the job's `world_size`, if it is set; else all."""
        return (job.parallelism.world_size or self.ranks) if self.device == "cuda" else self.ranks

    def dtype_of(self, job: TrainingJob) -> Dtype:
        """Return the dtype of a job's forward."""
        return (job.parallelism.dtype or self.dtype) if self.device == "cuda" else self.dtype


class ServingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the engine. weights: of the base. kv_cache_per_token: of a token in all layers.

    kv_cache: of all concurrent rollouts, each with its full number of sampled tokens; prompts need more. rollouts,
    sampled_tokens: the number of concurrent rollouts, and of sampled tokens in one; 0 if the job samples nothing.
    """

    weights: int
    kv_cache_per_token: int
    kv_cache: int
    rollouts: int
    sampled_tokens: int


class BlobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic to the blob store. published: weights to serve, each iteration of RL, the finished model of SFT.

    checkpoint: master weights and moments, each time that one is saved. batch: at most, the batch of an iteration
    without its prompts; 0 for SFT. iteration: all of that in an iteration of RL that saves a checkpoint.
    """

    published: int
    checkpoint: int
    batch: int
    iteration: int


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a job. training: of each of `ranks` ranks; total: all of that on its device."""

    device: Device
    dtype: Dtype
    ranks: int
    training: TrainingMemory
    total: int
    serving: ServingPlan
    blobs: BlobPlan


def plan_job(job: TrainingJob, shape: ModelShape, on: TrainerDevice) -> JobPlan:
    """Return the plan of a job whose model has this shape, on these devices."""
    dtype, ranks = on.dtype_of(job), on.ranks_of(job)
    training = training_memory(job, shape, dtype=dtype, device=on.device, ranks=ranks)
    rollouts, sampled = (job.play.max_concurrent_rollouts, job.play.sampled_tokens) if job.play is not None else (0, 0)
    return JobPlan(
        device=on.device,
        dtype=dtype,
        ranks=ranks,
        training=training,
        total=training.total,
        serving=ServingPlan(
            weights=shape.parameters * WIDTHS[dtype],
            kv_cache_per_token=kv_bytes_per_token(shape, dtype),
            kv_cache=rollouts * kv_bytes(shape, sampled, dtype),
            rollouts=rollouts,
            sampled_tokens=sampled,
        ),
        blobs=_blobs(job, shape, dtype),
    )


def _blobs(job: TrainingJob, shape: ModelShape, dtype: Dtype) -> BlobPlan:
    weights = shape.parameters if job.lora is None else trained_parameters(job, shape)
    published = WIDTHS[dtype] * weights
    checkpoint = 4 * weights + moment_bytes(job, shape)
    batch = job.batch_bytes
    iteration = published + checkpoint + batch if batch else 0
    return BlobPlan(published=published, checkpoint=checkpoint, batch=batch, iteration=iteration)

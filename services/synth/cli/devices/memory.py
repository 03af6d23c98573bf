"""The GPU memory of a job, for `config explain`: what its training holds, and what serving its model does."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from synth.jobs.memory import TrainingMemory, training_memory
from synth.jobs.resolved import Job, RlJob, SftJob
from synth.models.config_shape import read_shape
from synth.models.hosted_shapes import known_shape
from synth.models.memory import GIB, WIDTHS, kv_bytes_per_token
from synth.models.shape import ModelShape


class JobMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one GPU with the forward in `dtype`.

    training: of the job, where one GPU trains it; total: all of that. served_weights: of its base in the engine.
    kv_cache_per_token: of each token of prompt and reply that the engine holds.
    """

    dtype: Literal["fp32", "bf16"]
    training: TrainingMemory
    total: int
    served_weights: int
    kv_cache_per_token: int


def job_memory(job: Job, models_dir: Path) -> JobMemory | None:
    """The memory of a training job. None for an evaluation, and for a model of which no size is known.

    models_dir: where the config.json of a local model is looked for; that of a hosted base is known without it.
    """
    if not isinstance(job, SftJob | RlJob):
        return None
    shape = _shape(job.base_model, models_dir)
    if shape is None:
        return None
    dtype = job.parallelism.dtype or "bf16"
    found = training_memory(job, shape, dtype=dtype)
    return JobMemory(
        dtype=dtype,
        training=found,
        total=found.total,
        served_weights=shape.parameters * WIDTHS[dtype],
        kv_cache_per_token=kv_bytes_per_token(shape, dtype),
    )


def describe_memory(memory: JobMemory) -> list[str]:
    """The memory of a job as sentences."""
    parts = {name: getattr(memory.training, name) for name in memory.training.__struct_fields__}
    largest = sorted(((size, name) for name, size in parts.items() if size), reverse=True)
    of = ", ".join(f"{name.replace('_', ' ')} {_size(size)}" for size, name in largest)
    most = "at most " if memory.training.image_activations else ""
    return [
        f"training on one GPU in {memory.dtype} holds {most}{_size(memory.total)}: {of}",
        *(["image activations are those of a forward in which every token is of an image"] if most else []),
        f"serving its base holds {_size(memory.served_weights)} of weights, and {_size(memory.kv_cache_per_token)} a "
        "token of its KV cache",
        "a GPU that is shared by turns holds one of the two; what waits is in main memory, "
        f"{_size(memory.training.moved)} of training or the served weights",
    ]


def _shape(base: str, models_dir: Path) -> ModelShape | None:
    return read_shape(models_dir / base) or known_shape(base)


def _size(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.0f} KiB"

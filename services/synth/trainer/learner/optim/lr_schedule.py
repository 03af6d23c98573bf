"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from synth.methods.base import TrainingJob


def learning_rate(job: TrainingJob, step: int, total: int) -> float:
    """Return the lr of step `step` (from 1) of `total`: linear warm-up, then constant, cosine or linear decay.

    The last step of a cosine or linear schedule has exactly lr · min_lr_ratio.
    """
    warmup = job.warmup_steps
    if warmup is None:
        warmup = math.ceil(job.warmup_ratio * total)
    if step <= warmup:
        return job.lr * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    remaining = {
        "constant": 1.0,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "linear": 1 - progress,
    }[job.schedule]
    floor = job.min_lr_ratio if job.schedule != "constant" else 0.0
    return job.lr * (floor + (1 - floor) * remaining)

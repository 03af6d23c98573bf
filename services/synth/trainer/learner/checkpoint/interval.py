"""The default interval between checkpoints, from the size of a checkpoint."""

from __future__ import annotations

import itertools
import math

from synth.methods.base import TrainingJob
from synth.trainer.machine import Machine


def checkpoint_interval(job: TrainingJob, machine: Machine, state_bytes: int) -> int:
    """Return the steps between two checkpoints: the job's number, else `checkpoint_steps` per begun `checkpoint_bytes`.

    If checkpoints are rare, their interval is a multiple or a divisor of the interval of the evaluations of rollouts: a
    checkpoint of an evaluated step can be compared with others.
    """
    if job.checkpoint_every is not None:
        return job.checkpoint_every
    steps = job.checkpoint_steps * max(1, math.ceil(state_bytes / machine.checkpoint_bytes))
    evaluated = job.evaluated_every if job.play is not None else 0
    if not evaluated:
        return steps
    return next(n for n in itertools.count(steps) if n % evaluated == 0 or evaluated % n == 0)

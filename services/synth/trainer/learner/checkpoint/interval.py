"""The default interval between checkpoints, from the size of a checkpoint."""

from __future__ import annotations

import itertools
import math

from synth.trainer.config import RlTrainConfig, TrainConfig

#: Steps between two checkpoints of a state that is small: an iteration of RL takes about as long as a hundred of SFT.
_RL_STEPS, _SFT_STEPS = 1, 100


def checkpoint_interval(config: TrainConfig, state_bytes: int) -> int:
    """Return the steps between two checkpoints: the job's number, else 1 (SFT: 100) per begun `checkpoint_bytes` of
    state.

    If checkpoints are rare, their interval is a multiple or a divisor of the interval of an RL job's evaluations: a
    checkpoint of an evaluated step can be compared with others.
    """
    if config.checkpoint_every is not None:
        return config.checkpoint_every
    sizes = max(1, math.ceil(state_bytes / config.checkpoint_bytes))
    if not isinstance(config, RlTrainConfig):
        return _SFT_STEPS * sizes
    steps, evaluated = _RL_STEPS * sizes, config.evaluated_every
    if not evaluated:
        return steps
    return next(n for n in itertools.count(steps) if n % evaluated == 0 or evaluated % n == 0)

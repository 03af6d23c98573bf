"""How often a checkpoint is saved where the job does not say it: by the size of what is saved."""

from __future__ import annotations

import itertools
import math

from synth.trainer.config import RlTrainConfig, TrainConfig

#: Steps between two checkpoints of a state that is small: an iteration of RL takes about as long as a hundred of SFT.
_RL_STEPS, _SFT_STEPS = 1, 100


def checkpoint_interval(config: TrainConfig, state_bytes: int) -> int:
    """Steps between two checkpoints: as the job says, else one (SFT: 100) for each begun `checkpoint_bytes` of state.

    Where that is rare, it is in step with the evaluations of an RL job (a multiple of their interval, or a divisor of
    it): a checkpoint of an evaluated step can be compared with others.
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

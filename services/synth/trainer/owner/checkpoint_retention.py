"""Which checkpoints of a job are kept: those that a resume needs, and those that a user asked for."""

from __future__ import annotations

#: Two, since the last one may turn out to be unreadable.
_KEPT_FOR_RESUME = 2


def steps_to_keep(steps: list[int], *, keep: int, evaluated_every: int) -> set[int]:
    """Of the steps that have a checkpoint, those whose checkpoint is kept.

    The last two, and the last `keep` of those whose step is evaluated, which can be compared.
    evaluated_every: steps; 0 where nothing is evaluated: then the last `keep` of all are kept.
    """
    steps = sorted(steps)
    compared = [step for step in steps if not evaluated_every or step % evaluated_every == 0]
    return {*steps[-_KEPT_FOR_RESUME:], *compared[-keep:]}

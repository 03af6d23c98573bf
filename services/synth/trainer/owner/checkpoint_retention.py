"""Which checkpoints of a job are kept: those that a resume needs, and those that a user asked for."""

from __future__ import annotations

#: The last one may turn out to be unreadable.
_KEPT_FOR_RESUME = 2


def steps_to_keep(steps: list[int], *, keep: int, evaluated_every: int) -> set[int]:
    """The steps, of those that have a checkpoint, whose checkpoint stays.

    The last two, and the last `kept` of those whose step is evaluated: they are the ones that can be compared.
    evaluated_every: steps; 0 where nothing is evaluated, then the last `kept` of all stay.
    """
    steps = sorted(steps)
    compared = [step for step in steps if not evaluated_every or step % evaluated_every == 0]
    return {*steps[-_KEPT_FOR_RESUME:], *compared[-keep:]}

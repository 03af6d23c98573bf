"""Choose which checkpoints of a job are kept: the ones that a resume needs and the ones that the user requested."""

from __future__ import annotations

#: Two, since the last one may turn out to be unreadable.
_KEPT_FOR_RESUME = 2


def steps_to_keep(steps: list[int], *, keep: int, evaluated_every: int) -> set[int]:
    """Return the steps whose checkpoint is kept, out of the steps that have one.

    These are the last two, and the last `keep` whose step is evaluated, because those can be compared.
    evaluated_every: steps; 0 if nothing is evaluated: then the last `keep` of all steps are kept.
    """
    steps = sorted(steps)
    compared = [step for step in steps if not evaluated_every or step % evaluated_every == 0]
    return {*steps[-_KEPT_FOR_RESUME:], *compared[-keep:]}

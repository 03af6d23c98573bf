"""The result of a trainer's step, and the callback that it reports progress to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# (stage, done, of): called at least once for each micro-batch.
ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True)
class StepResult:
    """One step of training. step: counts from 1, and is the policy version after the step. values: its metrics."""

    step: int
    values: dict[str, float]

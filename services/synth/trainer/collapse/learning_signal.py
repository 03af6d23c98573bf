"""Whether a job still has anything to learn from, whatever its settings say (decision 26).

Invariant. What is said is a pure function of the steps' values in their order, as in `synth.trainer.collapse.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from synth.errors import Problem
from synth.events import TrainWarned

#: So many steps in a row without anything to learn from end the job, and so does an end at which nothing was trained.
NO_LEARNING_SIGNAL = "no_learning_signal"
#: Nothing is left to learn because everything is right already: the job goes on, and succeeds.
ALL_SOLVED = "all_solved"
#: What a task app pays for a rollout in which everything is right: rewards are from 0 to 1 by convention. Nobody knows
#: which reward is the full one on another scale, so equal rewards there are a lack of signal.
FULL_REWARD = 1.0
_IN_A_ROW = 5
_ROUNDING = 1e-6


@dataclass
class LearningSignal:
    """The steps so far: how many there were, and without a signal; in_a_row: of the last ones.

    solved: whether every rollout so far earned the full reward; solved_in_a_row: the same of the last ones without a
    signal. moved: whether any optimizer step has changed the policy.
    """

    steps: int = 0
    skipped: int = 0
    in_a_row: int = 0
    solved: bool = True
    solved_in_a_row: bool = True
    moved: bool = False

    def add(self, step: int, values: Mapping[str, float], *, learned: bool) -> TrainWarned | None:
        """The warning of the next step. learned: whether the reward has risen and is near its best."""
        full = _is_full_reward(values)
        self.steps += 1
        self.solved = self.solved and full
        # A log of an earlier version does not say how often the policy was changed.
        self.moved = self.moved or values.get("optimizer_moves", 0.0 if values.get("skipped") else 1.0) > 0
        if not values.get("skipped"):
            self.in_a_row, self.solved_in_a_row = 0, True
            return None
        self.skipped += 1
        self.in_a_row += 1
        self.solved_in_a_row = self.solved_in_a_row and full
        if self.in_a_row != _IN_A_ROW:
            return None
        if self.solved_in_a_row:
            return _all_solved(
                step,
                _IN_A_ROW,
                f"every rollout of {_IN_A_ROW} iterations in a row (the last is {step}) earned the full reward: "
                "nothing is left to learn from them",
            )
        what = f"{_IN_A_ROW} iterations in a row (the last is {step}) had no group whose rewards differ"
        if learned:
            return _no_signal(step, _IN_A_ROW, f"{what}; the reward has risen to its best, so the job goes on", "warn")
        return _no_signal(step, _IN_A_ROW, what, "stop")

    def at_the_end(self, step: int) -> TrainWarned | None:
        """What a job that has done all its steps has to say if none of them changed the policy; None if one did."""
        if self.moved or not self.steps:
            return None
        if self.solved:
            return _all_solved(
                step,
                self.steps,
                f"every rollout of all {self.steps} iterations earned the full reward: nothing was trained, and the "
                "model is as good as its source",
            )
        without = f"{self.skipped} of {self.steps} iterations had no group whose rewards differ"
        unused = self.steps - self.skipped
        too_far = f", and in {unused} each sequence was too old, or too far from the policy that sampled it"
        what = f"nothing was trained: {without}{too_far if unused else ''}"
        return _no_signal(step, self.steps, what, "stop")


def _is_full_reward(values: Mapping[str, float]) -> bool:
    """Whether every rollout of a step earned the full reward: a batch says only its mean and its spread."""
    mean, std = values.get("reward_mean"), values.get("reward_std")
    return mean is not None and std is not None and abs(mean - FULL_REWARD) <= _ROUNDING and std <= _ROUNDING


def _all_solved(step: int, over: int, what: str) -> TrainWarned:
    return TrainWarned(
        step=step,
        rule=ALL_SOLVED,
        value=over,
        threshold=_IN_A_ROW,
        over=over,
        action="warn",
        problem=Problem(
            what=what,
            expected=f"some rollouts that earn less than {FULL_REWARD:g}",
            fix="evaluate the model, and choose harder seeds if it is to learn more",
        ),
    )


def _no_signal(step: int, over: int, what: str, action: Literal["warn", "stop"]) -> TrainWarned:
    return TrainWarned(
        step=step,
        rule=NO_LEARNING_SIGNAL,
        value=over,
        threshold=_IN_A_ROW,
        over=over,
        action=action,
        problem=Problem(
            what=what,
            expected="rewards that differ between the rollouts of one seed",
            fix="check the reward of the task app; raise group_size or the temperature; start from a model that "
            "succeeds now and then",
        ),
    )

"""Whether a job still has anything to learn from, whatever its settings say (decision 26).

Invariant. What is said is a pure function of the steps' values in their order, as in `synth.trainer.collapse.rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from synth.errors import Problem
from synth.events import TrainWarned

#: So many steps in a row without anything to learn from end the job, and so does an end at which nothing was trained.
NO_LEARNING_SIGNAL = "no_learning_signal"
#: Nothing is left to learn, because every rollout earns the most there is to earn.
SOLVED = "solved"
#: The metric of a step that says which seeds it played: 0 are those of `[data] seeds`, k the k-th of the curriculum.
STAGE = "curriculum_stage"
#: What a task app pays for a rollout in which everything is right: rewards are from 0 to 1 by convention. On a larger
#: scale the most is what the policy was seen to earn, beside rollouts that earned less. Less than this is part of what
#: can be earned, on which a policy may be stuck.
FULL_REWARD = 1.0
_IN_A_ROW = 5
_ROUNDING = 1e-6


@dataclass
class LearningSignal:
    """The steps so far, and those of the current seeds.

    solved_after: steps in a row in which every rollout earned the most; 0: that ends nothing. stages: sets of seeds,
    those of `[data] curriculum` included. stage: the set that is played now, from 0. taught: by a teacher, from whom
    there is something to learn whatever is earned.
    best: the most that a rollout has earned on the current seeds; seen_less: whether another one earned less.
    solved_in_a_row, skipped_in_a_row: of the last steps, those that earned the most, and those without a signal.
    every_solved: whether all steps of the job did; moved: whether any optimizer step has changed the policy.
    """

    solved_after: int = 0
    stages: int = 1
    taught: bool = False
    stage: int = 0
    best: float = -math.inf
    seen_less: bool = False
    steps: int = 0
    skipped: int = 0
    solved_in_a_row: int = 0
    skipped_in_a_row: int = 0
    every_solved: bool = True
    moved: bool = False

    def is_behind(self, values: Mapping[str, float]) -> bool:
        """Whether a step played seeds that were solved before it was trained: it was collected ahead."""
        return values.get(STAGE, 0.0) < self.stage

    def add(self, step: int, values: Mapping[str, float], *, learned: bool) -> TrainWarned | None:
        """The warning of the next step. learned: whether the reward has risen and is near its best."""
        self.steps += 1
        self.skipped += bool(values.get("skipped"))
        # A log of an earlier version does not say how often the policy was changed.
        self.moved = self.moved or values.get("optimizer_moves", 0.0 if values.get("skipped") else 1.0) > 0
        if self.is_behind(values):
            return None
        solved = not self.taught and self._earned_the_most(values)
        self.every_solved = self.every_solved and solved
        self.solved_in_a_row = self.solved_in_a_row + 1 if solved else 0
        # What is solved has no group whose rewards differ either, and is no lack of a signal.
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if values.get("skipped") and not solved else 0
        if solved:
            return self._say_solved(step) if self.solved_in_a_row == (self.solved_after or _IN_A_ROW) else None
        if self.skipped_in_a_row != _IN_A_ROW:
            return None
        what = f"{_IN_A_ROW} iterations in a row (the last is {step}) had no {self._lacking}"
        if learned:
            return _no_signal(step, _IN_A_ROW, f"{what}; the reward has risen to its best, so the job goes on", "warn")
        return _no_signal(step, _IN_A_ROW, what, "stop")

    def at_the_end(self, step: int) -> TrainWarned | None:
        """What a job that has done all its steps has to say if none of them changed the policy; None if one did."""
        if self.moved or not self.steps:
            return None
        if self.every_solved:
            what = (
                f"every rollout of all {self.steps} iterations earned {self.best:g}, the most there is: nothing was "
                "trained, and the model is as good as its source"
            )
            return _solved(step, self.steps, self.best, what, "warn")
        without = f"{self.skipped} of {self.steps} iterations had no {self._lacking}"
        unused = self.steps - self.skipped
        too_far = f", and in {unused} each sequence was too old, or too far from the policy that sampled it"
        what = f"nothing was trained: {without}{too_far if unused else ''}"
        return _no_signal(step, self.steps, what, "stop")

    @property
    def _lacking(self) -> str:
        """What an iteration without anything to learn from has none of."""
        return "whole group of rollouts to learn from" if self.taught else "group whose rewards differ"

    def _earned_the_most(self, values: Mapping[str, float]) -> bool:
        """Whether every rollout of a step earned the most: a batch says its mean, its spread and its largest reward."""
        mean, std = values.get("reward_mean"), values.get("reward_std")
        if mean is None or std is None:
            return False
        # A log of an earlier version does not say the largest: where all are the same it is their mean.
        best = values.get("reward_max", mean if std <= _ROUNDING else -math.inf)
        if best > self.best + _ROUNDING:
            self.seen_less, self.best = self.seen_less or self.best > -math.inf, best
        self.seen_less = self.seen_less or mean < self.best - _ROUNDING
        full = abs(self.best - FULL_REWARD) <= _ROUNDING
        most = full or (self.best > FULL_REWARD and self.seen_less)
        return most and std <= _ROUNDING and mean >= self.best - _ROUNDING

    def _say_solved(self, step: int) -> TrainWarned:
        """The warning of a policy that has earned the most for long enough; begins the next seeds, where there are."""
        over, best = self.solved_in_a_row, self.best
        what = (
            f"every rollout of {over} iterations in a row (the last is {step}) earned {best:g}, the most there is: "
            "nothing is left to learn from these seeds"
        )
        if not self.solved_after:
            return _solved(step, over, best, what, "warn")
        if self.stage + 1 < self.stages:
            self.stage += 1
            self.best, self.seen_less = -math.inf, False
            self.solved_in_a_row = self.skipped_in_a_row = 0
            what += f"; the job goes on with seeds {self.stage} of [data] curriculum"
            return _solved(step, over, best, what, "advance")
        if not self.moved:
            what += "; nothing was trained, and the model is as good as its source"
        return _solved(step, over, best, what, "finish")


def _solved(step: int, over: int, best: float, what: str, action: Literal["warn", "advance", "finish"]) -> TrainWarned:
    return TrainWarned(
        step=step,
        rule=SOLVED,
        value=best,
        threshold=best,
        over=over,
        action=action,
        problem=Problem(
            what=what,
            expected=f"some rollouts that earn less than {best:g}",
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

"""Decide whether a job still has anything to learn, independent of its settings (decision 26).

Invariant. The warnings are a pure function of the steps' values in order, as in `synth.trainer.collapse.rules`.
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
#: The metric of a step that holds which seeds it played: 0 for `[data] seeds`, k for the k-th of the curriculum.
STAGE = "curriculum_stage"
#: The reward for a rollout in which everything is right: by convention rewards are from 0 to 1. On a larger scale the
#: most is the highest reward seen while other rollouts earned less. A lower reward is only a part of the full reward,
#: and a policy may be stuck on it.
FULL_REWARD = 1.0
_IN_A_ROW = 5
_ROUNDING = 1e-6


@dataclass
class LearningSignal:
    """The counts of a learning signal: over all steps so far, and over the steps on the current seeds.

    solved_after: the steps in a row in which every rollout earned the most that end the job; 0: they do not end it.
    stages: the number of seed sets, `[data] curriculum` included. stage: the set that is played now, from 0.
    taught: whether a teacher trains the policy, so that there is something to learn at any reward.
    best: the most that a rollout has earned on the current seeds; seen_less: whether another one earned less.
    solved_in_a_row, skipped_in_a_row: the last steps in a row in which all rollouts earned the most, or without signal.
    every_solved: whether in all steps of the job they did; moved: whether any optimizer step has changed the policy.
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
        """Return whether a step played seeds that were solved before it was trained: it was collected ahead."""
        return values.get(STAGE, 0.0) < self.stage

    def add(self, step: int, values: Mapping[str, float], *, learned: bool) -> TrainWarned | None:
        """Return the warning of the next step. learned: whether the reward has risen and is near its best."""
        self.steps += 1
        self.skipped += bool(values.get("skipped"))
        # A log of an earlier version does not say how often the policy was changed.
        self.moved = self.moved or values.get("optimizer_moves", 0.0 if values.get("skipped") else 1.0) > 0
        if self.is_behind(values):
            return None
        solved = not self.taught and self._earned_the_most(values)
        self.every_solved = self.every_solved and solved
        self.solved_in_a_row = self.solved_in_a_row + 1 if solved else 0
        # A solved batch has no group whose rewards differ either, but that is no lack of a signal.
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if values.get("skipped") and not solved else 0
        if solved:
            return self._warn_solved(step) if self.solved_in_a_row == (self.solved_after or _IN_A_ROW) else None
        if self.skipped_in_a_row != _IN_A_ROW:
            return None
        what = f"{_IN_A_ROW} iterations in a row (the last is {step}) had no {self._lacking}"
        if learned:
            return _no_signal(step, _IN_A_ROW, f"{what}; the reward has risen to its best, so the job goes on", "warn")
        return _no_signal(step, _IN_A_ROW, what, "stop")

    def at_the_end(self, step: int) -> TrainWarned | None:
        """Return the warning of a job that did all its steps without a change of the policy; None if it changed."""
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
        """The part that an iteration needs to learn from, in words."""
        return "whole group of rollouts to learn from" if self.taught else "group whose rewards differ"

    def _earned_the_most(self, values: Mapping[str, float]) -> bool:
        """Return whether every rollout of a step earned the most, from the batch's mean, spread and largest reward."""
        mean, std = values.get("reward_mean"), values.get("reward_std")
        if mean is None or std is None:
            return False
        # A log of an earlier version has no largest reward: if all are the same, it is their mean.
        best = values.get("reward_max", mean if std <= _ROUNDING else -math.inf)
        if best > self.best + _ROUNDING:
            self.seen_less, self.best = self.seen_less or self.best > -math.inf, best
        self.seen_less = self.seen_less or mean < self.best - _ROUNDING
        full = abs(self.best - FULL_REWARD) <= _ROUNDING
        most = full or (self.best > FULL_REWARD and self.seen_less)
        return most and std <= _ROUNDING and mean >= self.best - _ROUNDING

    def _warn_solved(self, step: int) -> TrainWarned:
        """Return the warning that a policy has earned the most for long enough; start the next seeds, if any."""
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

"""What ends a job whatever its settings: nothing to learn from, or nothing left to learn."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from synth.events import TrainWarned
from synth.jobs.schema.watch import WatchSection
from synth.methods.watch import WatchSettings
from synth.trainer.collapse.learning_signal import NO_LEARNING_SIGNAL, SOLVED, STAGE
from synth.trainer.collapse.rules import CollapseDetector

Values = dict[str, float]
WATCH = msgspec.convert(WatchSection(action="stop").model_dump(exclude={"enabled"}), WatchSettings)

TRAINED: Values = {
    "reward_mean": 0.4,
    "reward_std": 0.5,
    "reward_max": 1.0,
    "groups_kept": 12.0,
    "groups_dropped": 4.0,
    "skipped": 0.0,
    "optimizer_moves": 4.0,
}


def all_earned(reward: float, stage: int = 0) -> Values:
    """A step in which every rollout earned the same."""
    return {
        "reward_mean": reward,
        "reward_std": 0.0,
        "reward_max": reward,
        "skipped": 1.0,
        "optimizer_moves": 0.0,
        "groups_kept": 0.0,
        "groups_dropped": 16.0,
        STAGE: float(stage),
    }


RIGHT, WRONG = all_earned(1.0), all_earned(0.0)


def signs_of(
    steps: list[Values], watch: WatchSettings | None = None, **settings: Any
) -> tuple[list[TrainWarned], TrainWarned | None]:
    """What is said of the steps, and at their end."""
    given: dict[str, Any] = {"solved_after": 5, **settings}
    detector = CollapseDetector(watch, **given)
    found = [warned for step, values in enumerate(steps, start=1) for warned in detector.add(step, values)]
    return found, detector.at_the_end(len(steps))


def said(steps: list[Values], watch: WatchSettings | None = None, **settings: Any) -> list[tuple[str, int, str]]:
    return [(w.rule, w.step, w.action) for w in signs_of(steps, watch, **settings)[0]]


def test_a_policy_that_earns_the_most_for_long_enough_has_solved_its_seeds():
    [warned], end = signs_of([TRAINED, *[RIGHT] * 5])
    assert (warned.rule, warned.step, warned.action, warned.over, end) == (SOLVED, 6, "finish", 5, None)
    assert "every rollout of 5 iterations in a row (the last is 6) earned 1, the most there is" in warned.problem.what
    assert "nothing was trained" not in warned.problem.what
    assert said([TRAINED, *[RIGHT] * 4]) == []
    assert said([TRAINED, *[RIGHT] * 2], solved_after=2) == [(SOLVED, 3, "finish")]


def test_one_rollout_that_earns_less_begins_the_count_anew():
    almost = {**TRAINED, "reward_mean": 0.99, "reward_std": 0.1}
    assert said([TRAINED, *[RIGHT] * 4, almost, *[RIGHT] * 4]) == []
    assert said([TRAINED, *[RIGHT] * 4, almost, *[RIGHT] * 5]) == [(SOLVED, 11, "finish")]


def test_a_policy_that_is_stuck_on_part_of_the_reward_has_solved_nothing():
    stuck = all_earned(0.2)
    assert said([{**TRAINED, "reward_max": 0.2, "reward_mean": 0.1}, *[stuck] * 5]) == [(NO_LEARNING_SIGNAL, 6, "stop")]


def test_on_another_scale_the_most_is_what_was_seen_beside_less():
    begins = {**TRAINED, "reward_mean": 4.0, "reward_max": 9.0}
    assert said([begins, *[all_earned(9.0)] * 5]) == [(SOLVED, 6, "finish")]
    # One rollout once earned 9: what earns 7 since then is not the most.
    assert said([begins, *[all_earned(7.0)] * 5]) == [(NO_LEARNING_SIGNAL, 6, "warn")]
    # Nobody knows that 7 is the most where nothing else was ever earned; nor is 0.
    assert said([all_earned(7.0)] * 5) == [(NO_LEARNING_SIGNAL, 5, "stop")]
    assert said([all_earned(-1.0), *[WRONG] * 5]) == [(NO_LEARNING_SIGNAL, 5, "stop")]
    # 1 is the most of the usual scale alone.
    assert said([begins, *[RIGHT] * 5]) == [(NO_LEARNING_SIGNAL, 6, "stop")]


def test_a_rule_that_stops_jobs_leaves_one_alone_that_is_about_to_have_solved_its_seeds():
    assert said([RIGHT] * 5, WATCH) == [(SOLVED, 5, "finish")]
    assert said([RIGHT] * 12, WATCH, solved_after=12) == [(SOLVED, 12, "finish")]


def test_without_solved_after_a_job_is_told_and_goes_on():
    assert said([TRAINED, *[RIGHT] * 12], solved_after=0) == [(SOLVED, 6, "warn")]


def test_with_a_teacher_what_earns_the_most_is_not_solved_and_the_job_goes_on():
    taught: dict[str, Any] = RIGHT | {
        "skipped": 0.0,
        "optimizer_moves": 4.0,
        "groups_kept": 16.0,
        "groups_dropped": 0.0,
    }
    assert said([TRAINED, *[taught] * 12], solved_after=0, taught=True) == []
    [(rule, _, action)] = said([RIGHT] * 6, solved_after=0, taught=True)
    assert (rule, action) == (NO_LEARNING_SIGNAL, "stop")


def test_the_seeds_of_a_curriculum_follow_one_another_and_the_last_end_the_job():
    harder = all_earned(1.0, stage=1)
    starts = {**TRAINED, STAGE: 1.0}
    steps = [TRAINED, *[RIGHT] * 5, starts, *[harder] * 5]
    assert said(steps, stages=2) == [(SOLVED, 6, "advance"), (SOLVED, 12, "finish")]
    detector = CollapseDetector(WATCH, solved_after=5, stages=2)
    stages = [(detector.add(step, values), detector.stage)[1] for step, values in enumerate(steps, start=1)]
    assert stages == [0] * 5 + [1] * 7


def test_what_was_collected_ahead_from_solved_seeds_counts_for_nothing():
    ahead = [RIGHT] * 6
    hard = all_earned(0.0, stage=1)
    assert said([TRAINED, *[RIGHT] * 5, *ahead, *[hard] * 4], WATCH, stages=2) == [(SOLVED, 6, "advance")]
    assert said([TRAINED, *[RIGHT] * 5, *ahead, *[all_earned(1.0, stage=1)] * 5], stages=2)[1:] == [
        (SOLVED, 17, "finish")
    ]


def test_harder_seeds_that_earn_less_are_no_fall_of_the_reward():
    less = {**TRAINED, "reward_mean": 0.1, "reward_std": 0.3, STAGE: 1.0}
    learns = [TRAINED] * 5 + [{**TRAINED, "reward_mean": 0.8, "reward_std": 0.4}] * 5
    assert said([*learns, *[RIGHT] * 5, *[less] * 10], WATCH, stages=2) == [(SOLVED, 15, "advance")]
    assert ("reward_drop", 20, "stop") in said([*learns, *[RIGHT] * 4, *[{**less, STAGE: 0.0}] * 10], WATCH)


def test_five_iterations_without_a_signal_end_the_job_even_where_nothing_is_watched():
    detector = CollapseDetector(None)
    skipped = [*[True] * 4, False, *[True] * 6]
    warnings = [
        w for step, skip in enumerate(skipped, 1) for w in detector.add(step, TRAINED | {"skipped": float(skip)})
    ]
    assert [(w.rule, w.step, w.action) for w in warnings] == [(NO_LEARNING_SIGNAL, 10, "stop")]


def test_a_job_that_has_learned_is_not_failed_for_having_nothing_left_to_learn():
    learned = {**TRAINED, "reward_mean": 0.9, "reward_std": 0.3}
    left = {**learned, "skipped": 1.0, "optimizer_moves": 0.0}
    found = signs_of([TRAINED] * 5 + [learned] * 15 + [left] * 6, WATCH)[0]
    assert [(w.action, w.step) for w in found if w.rule == NO_LEARNING_SIGNAL] == [("warn", 25)]


@pytest.mark.parametrize(
    ("steps", "rule", "action", "words"),
    [
        ([RIGHT] * 3, SOLVED, "warn", "every rollout of all 3 iterations earned 1, the most there is: nothing was"),
        ([WRONG] * 3, NO_LEARNING_SIGNAL, "stop", "3 of 3 iterations had no group whose rewards differ"),
        ([RIGHT, WRONG], NO_LEARNING_SIGNAL, "stop", "2 of 2 iterations had no group whose rewards differ"),
        (
            [WRONG, {**TRAINED, "optimizer_moves": 0.0}],
            NO_LEARNING_SIGNAL,
            "stop",
            "1 of 2 iterations had no group whose rewards differ, and in 1 each sequence was too old",
        ),
    ],
)
def test_a_job_that_trained_nothing_says_so_at_its_end(steps: list[Values], rule: str, action: str, words: str):
    found, end = signs_of(steps)
    assert found == []
    assert end is not None
    assert (end.rule, end.action, end.step) == (rule, action, len(steps))
    assert words in end.problem.what


def test_a_job_that_trained_nothing_says_so_where_it_ends_as_solved():
    [warned], _ = signs_of([RIGHT] * 5)
    assert warned.action == "finish"
    assert "nothing was trained, and the model is as good as its source" in warned.problem.what


@pytest.mark.parametrize("steps", [[], [TRAINED], [WRONG, TRAINED, WRONG]])
def test_a_job_that_trained_something_has_nothing_to_say_at_its_end(steps: list[Values]):
    assert signs_of(steps) == ([], None)

"""The collapse watch: what it sees in the figures of runs, recorded ones and made-up ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.events import TrainWarned
from synth.jobs.schema.watch import WatchSection
from synth.methods.watch import WatchSettings
from synth.trainer.collapse.rules import RULES, CollapseDetector

DEFAULTS = msgspec.convert(WatchSection().model_dump(exclude={"enabled"}), WatchSettings)
Values = dict[str, float]

#: The Math demo by three learning rates, as its `train.step` events had it: 2e-4 over 80 iterations with 4 minibatches
#: and async_level 1, 3e-3 and 1e-3. To three digits.
RUNS: dict[str, dict[str, list[float | None]]] = json.loads((Path(__file__).parent / "recorded_runs.json").read_text())

HEALTHY: Values = {
    "reward_mean": 0.4,
    "reward_std": 0.5,
    "entropy": 0.8,
    "completion_unique_rate": 0.9,
    "completion_tokens_mean": 200.0,
    "completion_truncated_rate": 0.1,
    "groups_kept": 12.0,
    "groups_dropped": 4.0,
    "clip_rate_positive": 0.2,
    "clip_rate_negative": 0.3,
    "mismatch_kl": 1e-3,
    "grad_norm": 0.3,
    "sequences": 96.0,
    "sequences_stale": 3.0,
    "skipped": 0.0,
    "reward_env_mean": 0.4,
    "reward_env_std": 0.5,
    "reward_outcome_mean": 0.4,
}
#: What one sign of each kind looks like.
SIGNS: dict[str, Values] = {
    "entropy_low": {"entropy": 0.07},
    "entropy_high": {"entropy": 4.0},
    "unique_low": {"completion_unique_rate": 0.125},
    "length_low": {"completion_tokens_mean": 3.0},
    "length_high": {"completion_tokens_mean": 1000.0},
    "truncated_rise": {"completion_truncated_rate": 0.7},
    "no_signal": {"groups_kept": 1.0, "groups_dropped": 15.0},
    "clip_gap": {"clip_rate_positive": 0.0, "clip_rate_negative": 0.7},
    "mismatch_kl": {"mismatch_kl": 0.2},
    "grad_norm_high": {"grad_norm": 40.0},
    "reward_drop": {"reward_mean": 0.0, "reward_std": 0.0},
    "stale_share": {"sequences_stale": 90.0},
    "judge_drift": {"reward_env_mean": -5.0, "reward_outcome_mean": 0.9},
}


def recorded(name: str) -> list[Values]:
    columns = RUNS[name]
    steps = len(columns["reward_mean"])
    return [{k: v for k, column in columns.items() if (v := column[i]) is not None} for i in range(steps)]


def detected(steps: Iterable[Values], **settings: Any) -> list[TrainWarned]:
    detector = CollapseDetector(msgspec.structs.replace(DEFAULTS, **settings))
    return [warned for step, values in enumerate(steps, start=1) for warned in detector.add(step, values)]


def test_a_run_that_learns_is_left_alone():
    assert detected(recorded("learns")) == []


def test_dropped_images_are_warned_about_once():
    counts = [0.0, 4.0, 6.0, 0.0, 2.0]
    [warned] = detected([HEALTHY | {"images_dropped": count} for count in counts])
    assert (warned.rule, warned.step, warned.value, warned.action) == ("images_dropped", 2, 4.0, "warn")
    assert "4 images of the rollouts of iteration 2 were dropped" in warned.problem.what


def test_a_policy_that_collapses_is_seen_while_it_falls():
    warnings = detected(recorded("collapses"))
    assert [w.rule for w in warnings] == ["reward_drop", "no_signal"]
    drop = warnings[0]
    assert (drop.step, drop.over, drop.threshold) == (12, 5, 0.6)
    assert drop.value > 0.6
    assert drop.problem.what == (
        f"the mean reward is {drop.value:.3g} standard deviations below its best in iteration 12, the last of 5 in a "
        "row beyond its limit: the policy unlearns"
    )
    assert drop.problem.expected == "at most 0.6"
    assert "learning rate" in drop.problem.fix


def test_a_reward_that_is_lost_again_is_seen_though_it_comes_back():
    assert [w.rule for w in detected(recorded("wavers"))] == ["reward_drop"]


def test_every_rule_has_a_threshold_and_a_sign():
    assert [rule.name for rule in RULES] == list(SIGNS)
    assert set(SIGNS) == set(WatchSettings.__struct_fields__) - {"action", "patience", "window"}


@pytest.mark.parametrize("rule", SIGNS)
def test_a_sign_counts_once_it_has_shown_for_as_long_as_the_patience(rule: str):
    sick = HEALTHY | SIGNS[rule]
    assert detected([HEALTHY] * 6 + [sick] * 4) == []
    [warned] = [w for w in detected([HEALTHY] * 6 + [sick] * 20) if w.rule == rule]
    assert warned.over == 5
    assert warned.action == "warn"
    assert f"{warned.value:.3g}" in warned.problem.what
    assert f"{warned.threshold:.3g}" in warned.problem.expected
    assert [w for w in detected([HEALTHY] * 6 + [sick] * 20, **{rule: 0.0}) if w.rule == rule] == []


def test_a_limit_that_the_first_iterations_set_is_said_with_them():
    [warned] = detected([HEALTHY] * 5 + [HEALTHY | {"entropy": 0.04}] * 5)
    assert warned.threshold == pytest.approx(0.08)
    assert warned.problem.expected == "at least 0.08, 0.1 times the 0.8 of the first 5 iterations"


def test_a_sign_that_comes_and_goes_is_said_once_and_one_that_returns_again():
    sick = HEALTHY | SIGNS["mismatch_kl"]
    flapping = [HEALTHY] * 5 + [sick] * 5 + [HEALTHY, sick, HEALTHY, sick] * 5
    assert [w.step for w in detected(flapping)] == [10]
    returning = [HEALTHY] * 5 + [sick] * 5 + [HEALTHY] * 5 + [sick] * 5
    assert [w.step for w in detected(returning)] == [10, 20]


def test_iterations_in_which_nothing_was_trained_neither_show_a_sign_nor_end_it():
    sick = HEALTHY | SIGNS["entropy_low"]
    skipped = {k: v for k, v in HEALTHY.items() if k != "entropy"} | {"skipped": 1.0}
    assert [w.step for w in detected([HEALTHY] * 5 + [sick, skipped, sick, skipped, sick, sick, sick])] == [12]


@pytest.mark.parametrize("rule", ["entropy_low", "unique_low", "no_signal", "clip_gap"])
def test_a_policy_that_has_learned_may_be_sure_of_itself_until_it_unlearns(rule: str):
    sure = HEALTHY | SIGNS[rule]
    learned = [sure | {"reward_mean": 0.9, "reward_std": 0.3}] * 15
    assert detected([HEALTHY] * 5 + learned) == []
    rules = [w.rule for w in detected([HEALTHY] * 5 + learned + [sure | {"reward_mean": 0.3}] * 15)]
    assert set(rules) == {rule, "reward_drop"}


def near(value: float) -> st.SearchStrategy[float]:
    return st.floats(0.7 * value, 1.3 * value)


@given(st.lists(st.fixed_dictionaries({name: near(value) for name, value in HEALTHY.items()}), max_size=60))
def test_noise_is_no_collapse(steps: list[Values]):
    assert detected(steps) == []


figures = st.fixed_dictionaries({}, optional={name: st.floats(0, 4 * value + 1) for name, value in HEALTHY.items()})


@given(st.lists(figures, max_size=40), st.integers(1, 4), st.integers(1, 4))
def test_whatever_the_figures_a_rule_speaks_only_after_its_patience_and_never_twice_within_it(
    steps: list[Values], patience: int, window: int
):
    warnings = detected(steps, patience=patience, window=window)
    for rule in SIGNS:
        said = [w.step for w in warnings if w.rule == rule]
        assert all(step >= patience for step in said)
        assert all(later - earlier >= 2 * patience for earlier, later in pairwise(said))


def judged(step: int, *, env: float, outcome: float) -> dict[str, float]:
    return {"reward_mean": env + outcome, "reward_env_mean": env, "reward_env_std": 0.2, "reward_outcome_mean": outcome}


def test_a_policy_that_pleases_its_judges_and_not_its_environment_is_told():
    settings = msgspec.convert(WatchSection(window=2, patience=2).model_dump(), WatchSettings)
    watch = CollapseDetector(settings)
    runs = [watch.add(n, judged(n, env=0.6 - 0.05 * n, outcome=0.1 * n)) for n in range(8)]
    # By 0.05 · 3 / 0.2 = 0.75 deviations in the means of two steps at step 4, and more at step 5.
    assert [w.rule for found in runs for w in found] == ["judge_drift"]
    [warned] = runs[5]
    assert "judges' scores have risen" in warned.problem.what


def test_both_rising_or_both_falling_is_no_drift():
    settings = msgspec.convert(WatchSection(window=2, patience=2).model_dump(), WatchSettings)
    for slope in (0.05, -0.02):
        watch = CollapseDetector(settings)
        found = [watch.add(n, judged(n, env=0.5 + slope * n, outcome=0.5 + slope * n)) for n in range(8)]
        assert not [w for each in found for w in each if w.rule == "judge_drift"]

"""Rubrics from task apps, job files and requests; and what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest

from synth.demo.math.app import math
from synth.errors import Problem
from synth.judging.rubric import rubric_from_request, rubric_from_table, rubric_from_task_info
from synth.judging.settings import Criterion, Rubric
from task_apps.crafter.app import crafter

POLITE: dict[str, Any] = {"id": "polite", "description": "It is polite."}


def one(criterion: dict[str, Any]) -> dict[str, Any]:
    return {"outcome": {"criteria": [criterion]}}


def test_a_task_apps_rubric_has_its_two_tracks():
    info = {
        "rubric": {
            "outcome": {"version": "1", "goal_text": "Win.", "criteria": [POLITE | {"weight": 2, "required": True}]},
            "events": {"goal_text": "Move.", "criteria": [{"id": "moves"}], "aggregation": "sum"},
        }
    }
    assert rubric_from_task_info(info) == Rubric(
        outcome=[Criterion(id="polite", description="It is polite.", weight=2.0)],
        event=[Criterion(id="moves", description="moves")],
        goal="Win.",
        event_goal="Move.",
        event_aggregation="sum",
    )


def test_a_rubric_that_is_one_track_is_the_outcomes():
    track = {"version": "1", "goal_text": "Win.", "criteria": [POLITE], "aggregation": "weighted_sum"}
    found = rubric_from_task_info({"rubric": track})
    assert found == Rubric(outcome=[Criterion(**POLITE)], goal="Win.")


def test_the_published_table_has_keys_and_an_aggregation_for_each_criterion():
    table = {
        "enabled": True,
        "weights": {"env": 0.2, "event": 0.4, "outcome": 0.4},
        "event": {
            "rubric_id": "crafter/event@v1",
            "criteria": [{"key": "unlocks", "weight": 0.9, "description": "?", "aggregation": "weighted_sum"}],
        },
    }
    found = rubric_from_table(table)
    assert isinstance(found, Rubric)
    assert found.event == [Criterion(id="unlocks", description="?", weight=0.9)]
    assert (found.outcome, found.event_aggregation, found.aggregation) == ([], "weighted_mean", "weighted_mean")


def test_a_request_has_lists_of_criteria_and_overrides_by_track():
    rubric = {"event": [], "outcome": [POLITE | {"scale": "binary"}]}
    found = rubric_from_request(rubric, {"event": {"criteria": [{"id": "a_b.c"}], "goal_text": "Go."}})
    assert found == Rubric(
        outcome=[Criterion(**POLITE, scale="binary")], event=[Criterion(id="a_b.c", description="a b c")], goal="Go."
    )
    inner = rubric_from_request({"rubric_overrides": rubric}, None)
    assert inner == Rubric(outcome=[Criterion(**POLITE, scale="binary")])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "the rubric has no criteria"),
        ({"version": "1", "criteria_count": 1, "source": "inline"}, "the rubric has no criteria"),
        ({"outcome": {"rubric_id": "crafter/v1"}}, "outcome: the rubric has no criteria"),
        ({"outcome": {"criteria": []}}, "outcome: the rubric has no criteria"),
        ({"outcome": {"criteria": [POLITE, POLITE]}}, "two criteria have the id 'polite'"),
        (one({"description": "?"}), "the criterion has no id"),
        (one({"id": 7}), "the criterion's id is 7"),
        ({"outcome": ["polite"]}, "'polite' is no criterion"),
        (one(POLITE | {"weight": 0}), "the weight of 'polite' is 0; expected a number above 0"),
        (one(POLITE | {"weight": -1.0}), "the weight of 'polite' is -1.0"),
        (one(POLITE | {"weight": float("nan")}), "the weight of 'polite' is nan"),
        (one(POLITE | {"weight": "much"}), "the weight of 'polite' is 'much'"),
        (one(POLITE | {"weight": True}), "the weight of 'polite' is True"),
        (one(POLITE | {"scale": "custom"}), "the scale of 'polite' is 'custom'; expected bounded"),
        ({"outcome": {"criteria": [POLITE], "aggregation": "custom"}}, "the aggregation is 'custom'"),
        (
            {"outcome": [POLITE | {"aggregation": "sum"}, {"id": "b", "aggregation": "weighted_sum"}]},
            "the criteria name several aggregations",
        ),
    ],
)
def test_what_is_wrong_is_one_problem_with_its_place(table: dict[str, Any], said: str):
    for found in (
        rubric_from_table(table),
        rubric_from_task_info({"rubric": table}),
        rubric_from_request(table, None),
    ):
        assert isinstance(found, Problem)
        assert said in found.text()
        assert "rubric" in found.where


@pytest.mark.parametrize("info", [None, [], {}, {"rubric": None}, {"rubric": "inline"}])
def test_a_task_app_without_a_rubric_is_told_what_one_is(info: Any):
    found = rubric_from_task_info(info, where="http://app/task_info")
    assert isinstance(found, Problem)
    assert found.text().startswith("http://app/task_info: the task app has no rubric; expected `rubric` with")


def test_our_task_apps_have_rubrics():
    of_math = rubric_from_task_info({"rubric": math._rubric})  # pyright: ignore[reportPrivateUsage]
    of_crafter = rubric_from_task_info({"rubric": crafter._rubric})  # pyright: ignore[reportPrivateUsage]
    assert isinstance(of_math, Rubric)
    assert isinstance(of_crafter, Rubric)
    assert [c.id for c in of_math.outcome] == ["correct", "plain"]
    assert (len(of_crafter.outcome), [c.scale for c in of_crafter.event]) == (22, ["binary"])

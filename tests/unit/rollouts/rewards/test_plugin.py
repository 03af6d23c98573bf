"""An advantage of the operator's own: tried before the first rollout, and each of its mistakes names it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from examples.plugins import by_rank
from synth.errors import Permanent
from synth.rollouts.collection.batching import CreditRules, group_has_signal
from synth.rollouts.rewards.plugin import AdvantageFailed, PluginAdvantage, load_advantage
from tests.unit.rollouts.collection.test_batching import batch_of, rollout

HERE = "tests.unit.rollouts.rewards.test_plugin"


def raising(rewards: list[float]) -> list[float]:
    raise ZeroDivisionError("no spread")


def nan(rewards: list[float]) -> list[float]:
    return [float("nan")] * len(rewards)


def one(rewards: list[float]) -> list[float]:
    return [1.0]


def number(rewards: list[float]) -> Any:
    return 1.0


def words(rewards: list[float]) -> Any:
    return ["good"] * len(rewards)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("raising", "for [1, 0, 0.5, 0] it raises ZeroDivisionError: no spread"),
        ("nan", "for [1, 0, 0.5, 0] it gives [nan, nan, nan, nan]"),
        ("one", "it gives 1 numbers for 4 rewards"),
        ("number", "it raises TypeError"),
        ("words", "it raises ValueError"),
    ],
)
def test_each_mistake_is_one_error_that_names_it(function: str, what: str):
    with pytest.raises(AdvantageFailed, match=re.escape(what)) as failed:
        load_advantage(f"{HERE}:{function}", (HERE,))
    assert f"{HERE}:{function}" in str(failed.value)


def test_one_that_is_not_allowed_is_not_imported():
    with pytest.raises(Permanent, match="no module that this cluster runs code of"):
        load_advantage("antigravity:fly", (HERE,))


def test_it_takes_the_place_of_the_groups_own_comparison():
    credit = CreditRules(advantage=PluginAdvantage("by_rank", by_rank))
    batch = batch_of([rollout(i, r) for i, r in enumerate([0.0, 100.0, 1.0, 1.0])], 1, credit)
    assert batch.advantages.tolist() == pytest.approx([-1, 1, 0, 0])
    assert not group_has_signal([rollout(i, 1.0) for i in range(4)], credit)

"""Mismatch and staleness are corrected apart."""

from __future__ import annotations

import math

import pytest
import torch

from synth.trainer.learner.losses.importance_correction import correct_importance, correction_metrics
from tests.unit.trainer.batches import rl_config


def test_a_token_ratio_is_capped_and_never_raised() -> None:
    old = torch.tensor([-1.0, -1.0, -3.0])
    behaviour = torch.tensor([-4.0, -1.0, -1.0])
    found = correct_importance(old, behaviour, torch.ones(3, dtype=torch.int32), torch.tensor([0, 3]), rl_config())
    assert found.weight_N.tolist() == pytest.approx([2.0, 1.0, math.exp(-2)])
    assert correction_metrics(found.sums)["token_truncated_rate_lag1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("lag", "shift", "kept"),
    [(0, 0.005, True), (0, 0.02, False), (0, -0.02, False), (1, 0.02, True), (1, 0.8, False), (3, -0.8, False)],
)
def test_the_tight_gate_is_for_on_policy_tokens_and_the_loose_one_for_stale(lag: int, shift: float, kept: bool) -> None:
    behaviour = torch.tensor([-1.0, -2.0])
    lags = torch.full((2,), lag, dtype=torch.int32)
    found = correct_importance(behaviour + shift, behaviour, lags, torch.tensor([0, 2]), rl_config())
    assert found.keep_S.tolist() == [kept]


def test_a_sequence_across_two_versions_is_gated_span_by_span() -> None:
    behaviour = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    old = behaviour + torch.tensor([0.3, 0.3, 0.0, 0.0])
    stale_then_on_policy = torch.tensor([1, 1, 0, 0], dtype=torch.int32)
    cu = torch.tensor([0, 4])
    assert correct_importance(old, behaviour, stale_then_on_policy, cu, rl_config()).keep_S.item()
    assert not correct_importance(old, behaviour, 1 - stale_then_on_policy, cu, rl_config()).keep_S.item()


def test_rates_are_reported_by_lag_and_absent_where_there_is_none() -> None:
    behaviour = torch.tensor([-1.0, -1.0])
    found = correction_metrics(
        correct_importance(
            behaviour + 0.02, behaviour, torch.zeros(2, dtype=torch.int32), torch.tensor([0, 1, 2]), rl_config()
        ).sums
    )
    assert found["rejected_rate_lag0"] == 1.0
    assert found["mismatch_kl_lag0"] == pytest.approx(math.expm1(0.02) - 0.02, rel=1e-4)
    assert "rejected_rate_lag1" not in found

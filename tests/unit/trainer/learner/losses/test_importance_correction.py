"""Mismatch and staleness are corrected apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from synth.trainer.learner.losses.importance_correction import correct_importance, correction_metrics
from tests.unit.trainer.jobs import rl_job

#: Without the room that short sequences have.
PLAIN_GATES = rl_job(gate_tokens=0)


def test_a_token_ratio_is_capped_and_never_raised() -> None:
    old = torch.tensor([-1.0, -1.0, -3.0])
    behaviour = torch.tensor([-4.0, -1.0, -1.0])
    found = correct_importance(old, behaviour, torch.ones(3, dtype=torch.int32), torch.tensor([0, 3]), PLAIN_GATES)
    assert found.weight_N.tolist() == pytest.approx([2.0, 1.0, math.exp(-2)])
    assert correction_metrics(found.sums)["token_truncated_rate_lag1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("lag", "shift", "kept"),
    [(0, 0.005, True), (0, 0.02, False), (0, -0.02, False), (1, 0.02, True), (1, 0.8, False), (3, -0.8, False)],
)
def test_the_tight_gate_is_for_on_policy_tokens_and_the_loose_one_for_stale(lag: int, shift: float, kept: bool) -> None:
    behaviour = torch.tensor([-1.0, -2.0])
    lags = torch.full((2,), lag, dtype=torch.int32)
    found = correct_importance(behaviour + shift, behaviour, lags, torch.tensor([0, 2]), PLAIN_GATES)
    assert found.keep_S.tolist() == [kept]


def test_a_sequence_across_two_versions_is_gated_span_by_span() -> None:
    behaviour = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    old = behaviour + torch.tensor([0.3, 0.3, 0.0, 0.0])
    stale_then_on_policy = torch.tensor([1, 1, 0, 0], dtype=torch.int32)
    cu = torch.tensor([0, 4])
    assert correct_importance(old, behaviour, stale_then_on_policy, cu, PLAIN_GATES).keep_S.item()
    assert not correct_importance(old, behaviour, 1 - stale_then_on_policy, cu, PLAIN_GATES).keep_S.item()


def test_rates_are_reported_by_lag_and_absent_where_there_is_none() -> None:
    behaviour = torch.tensor([-1.0, -1.0])
    found = correction_metrics(
        correct_importance(
            behaviour + 0.02, behaviour, torch.zeros(2, dtype=torch.int32), torch.tensor([0, 1, 2]), PLAIN_GATES
        ).sums
    )
    assert found["rejected_rate_lag0"] == 1.0
    assert found["mismatch_kl_lag0"] == pytest.approx(math.expm1(0.02) - 0.02, rel=1e-4)
    assert "rejected_rate_lag1" not in found
    assert (found["rejected_sequences"], found["rejected_token_rate"]) == (2, 1)


def rejected_share(tokens: int, **changes: Any) -> float:
    """Of 4000 sequences at a KL of 6e-4 nats a token, sampled by the policy in training."""
    torch.manual_seed(tokens)
    behaviour = torch.full((4000 * tokens,), -1.0)
    old = behaviour + torch.randn(len(behaviour)) * math.sqrt(2 * 6e-4)
    lags, cu = torch.zeros(len(behaviour), dtype=torch.int32), torch.arange(0, len(behaviour) + 1, tokens)
    return 1 - correct_importance(old, behaviour, lags, cu, rl_job(**changes)).keep_S.float().mean().item()


@pytest.mark.parametrize(("tokens", "fixed"), [(4, 0.57), (16, 0.26), (64, 0.02), (256, 0.0)])
def test_a_short_sequence_is_rejected_no_more_often_than_one_of_64_tokens(tokens: int, fixed: float) -> None:
    assert rejected_share(tokens, gate_tokens=0) == pytest.approx(fixed, abs=0.03)
    assert rejected_share(tokens) == pytest.approx(min(fixed, 0.02), abs=0.01)


def test_the_bounds_and_the_tokens_of_a_gate_are_the_jobs() -> None:
    assert rejected_share(4, gate_tokens=0, on_policy=(0.5, 2.0)) == 0
    assert rejected_share(4, gate_tokens=16) == pytest.approx(0.26, abs=0.03)


def test_gates_that_are_off_reject_nothing() -> None:
    assert rejected_share(4, gate_tokens=0, gates=False) == 0


def test_the_tokens_that_count_are_those_of_the_gates_own_lag() -> None:
    """One token of lag 0 among 63 that are stale is a mean over one token."""
    behaviour = torch.full((64,), -1.0)
    old, lags = behaviour.clone(), torch.ones(64, dtype=torch.int32)
    old[0], lags[0] = -1.0 + 0.05, 0
    assert correct_importance(old, behaviour, lags, torch.tensor([0, 64]), rl_job()).keep_S.item()
    assert not correct_importance(old, behaviour, lags, torch.tensor([0, 64]), PLAIN_GATES).keep_S.item()

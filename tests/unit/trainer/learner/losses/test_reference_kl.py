"""The KL term that holds a policy near its reference model."""

from __future__ import annotations

import pytest
import torch

from synth.trainer.learner.losses.reference_kl import reference_kl
from tests.unit.trainer.loss_inputs import gradient, loss_inputs


def test_the_estimate_is_unbiased_in_value_and_in_gradient_whoever_sampled() -> None:
    """Its expectation over a small vocabulary, against the KL itself."""
    torch.manual_seed(0)
    theta, reference, sampler = (torch.randn(6, dtype=torch.float64) for _ in range(3))
    theta.requires_grad_()
    logp, ref, mu = theta.log_softmax(0), reference.log_softmax(0), sampler.log_softmax(0)
    kl = (logp.exp() * (logp - ref)).sum()
    inputs = loss_inputs(logp, mu, [0.0] * 6, [1] * 6, weight=mu.exp() * 6)
    estimate = reference_kl(inputs, ref)
    assert estimate.loss.item() == pytest.approx(kl.item(), abs=1e-12)
    assert estimate.kl_N.mean().item() == pytest.approx(kl.item(), abs=1e-12)
    assert torch.allclose(gradient(estimate.loss, theta), gradient(kl, theta), atol=1e-12)


@pytest.mark.parametrize(("now", "then"), [(-60.0, -0.1), (-0.1, -60.0)])
def test_a_policy_that_is_far_away_is_pulled_back_by_finite_numbers(now: float, then: float) -> None:
    logp = torch.tensor([now]).requires_grad_()
    out = reference_kl(loss_inputs(logp, logp.detach(), [1.0], [1]), torch.tensor([then]))
    assert torch.isfinite(out.loss)
    assert gradient(out.loss, logp).item() == pytest.approx(now - then)


def test_a_rejected_sequence_adds_nothing() -> None:
    logp = torch.tensor([-1.0, -2.0]).requires_grad_()
    inputs = loss_inputs(logp, logp.detach(), [1.0, 1.0], [1, 1], keep=[True, False])
    assert gradient(reference_kl(inputs, torch.tensor([-1.5, -1.5])).loss, logp).tolist() == [0.25, 0.0]

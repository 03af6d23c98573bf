"""DPO's loss against hand-made vectors, and its gradient against finite differences and a plain formula in float64."""

from __future__ import annotations

import math

import pytest
import torch

from synth.trainer.learner.losses.dpo import dpo_loss, preference_accuracy

# β = 0.5: the rewards are 0.5·(−10+12) = 1 and 0.5·(−20+17) = −1.5, so that h = 2.5; then 0.5·(−1) and 0.5·1, h = −1.
LOGP = [[-10.0, -20.0], [-8.0, -6.0]]
REFERENCE = [[-12.0, -17.0], [-7.0, -7.0]]


def test_the_loss_and_the_rewards_are_the_hand_made_ones() -> None:
    out = dpo_loss(torch.tensor(LOGP), torch.tensor(REFERENCE), beta=0.5)
    assert out.chosen_P.tolist() == [1.0, -0.5]
    assert out.rejected_P.tolist() == [-1.5, 0.5]
    assert out.margin_P.tolist() == [2.5, -1.0]
    # log(1 + e^−2.5) and log(1 + e^1)
    assert out.loss_P.tolist() == pytest.approx([0.0788897, 1.3132617], abs=1e-6)
    assert preference_accuracy(out.margin_P).tolist() == [1.0, 0.0]


def test_smoothed_labels_add_the_other_way_round() -> None:
    out = dpo_loss(torch.tensor(LOGP), torch.tensor(REFERENCE), beta=0.5, label_smoothing=0.1)
    expected = [0.9 * math.log1p(math.exp(-h)) + 0.1 * math.log1p(math.exp(h)) for h in (2.5, -1.0)]
    assert out.loss_P.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_policy_that_is_its_reference_has_the_loss_of_a_coin() -> None:
    out = dpo_loss(torch.tensor(REFERENCE), torch.tensor(REFERENCE), beta=0.1)
    assert out.loss_P.tolist() == pytest.approx([math.log(2)] * 2)
    assert preference_accuracy(out.margin_P).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_is_the_papers_and_finite_differences(smoothing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logp = torch.randn(5, 2, generator=generator, dtype=torch.float64).mul(4).requires_grad_()
    reference = torch.randn(5, 2, generator=generator, dtype=torch.float64) * 4
    beta = 0.3

    def loss(x: torch.Tensor) -> torch.Tensor:
        return dpo_loss(x, reference, beta=beta, label_smoothing=smoothing).loss_P.sum()

    assert torch.autograd.gradcheck(loss, (logp,))
    (gradient,) = torch.autograd.grad(loss(logp), logp)
    delta = logp.detach() - reference
    h = beta * (delta[:, 0] - delta[:, 1])
    # Section 4 of the paper: a pair weighs σ(−h), as far as its order is wrong.
    slope = -beta * ((1 - smoothing) * torch.sigmoid(-h) - smoothing * torch.sigmoid(h))
    torch.testing.assert_close(gradient, torch.stack([slope, -slope], dim=1))


def test_far_apart_sides_neither_overflow_nor_lose_their_gradient() -> None:
    logp = torch.tensor([[-9000.0, -10.0]], requires_grad=True)
    out = dpo_loss(logp, torch.tensor([[-10.0, -9000.0]]), beta=1.0)
    out.loss_P.sum().backward()
    assert out.loss_P.item() == pytest.approx(17980.0)
    assert logp.grad is not None
    assert logp.grad.tolist() == [[-1.0, 1.0]]

"""GSPO against hand-made vectors and a float64 reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from synth.trainer.learner.losses.base import Clip, LossOutput
from synth.trainer.learner.losses.gspo import gspo_loss
from tests.unit.trainer.loss_inputs import loss_inputs

CLIP = Clip(low=3e-4, high=4e-4)


def loss_of(
    logp: Tensor,
    old: Tensor,
    advantages: list[float],
    counts: list[int],
    *,
    weight: Tensor | None = None,
    keep: list[bool] | None = None,
) -> LossOutput:
    return gspo_loss(loss_inputs(logp, old, advantages, counts, weight=weight, keep=keep), clip=CLIP)


@pytest.mark.parametrize(
    ("log_ratios", "advantage", "loss", "slope", "clipped"),
    [
        ((0.0002, 0.0004), 1, -1.000300045, -0.500150, False),
        ((0.01, -0.002), 1, -1.0004, 0, True),
        ((0.01, -0.002), -1, 1.004008011, 0.502004, False),
        ((-0.01, 0.002), -1, 0.9997, 0, True),
        ((-0.01, 0.002), 1, -0.996007989, -0.498004, False),
    ],
)
def test_it_gives_the_hand_vectors(
    log_ratios: tuple[float, float], advantage: float, loss: float, slope: float, clipped: bool
) -> None:
    old = torch.tensor([-1.5, -0.5])
    logp = (old + torch.tensor(log_ratios)).requires_grad_()
    out = loss_of(logp, old, [advantage], [2])
    out.loss.backward()
    assert logp.grad is not None
    assert out.loss.item() == pytest.approx(loss, abs=2e-6)
    assert logp.grad.tolist() == pytest.approx([slope, slope], abs=2e-6)
    assert out.clipped_U.tolist() == [clipped]


def test_its_gradient_is_that_of_the_plain_formula_in_float64() -> None:
    torch.manual_seed(0)
    counts, advantages = [3, 1, 5, 7], [1.0, -0.7, 0.4, -1.2]
    old = -torch.rand(16, dtype=torch.float64)
    shift = torch.tensor([2e-3, 2e-3, 0.0, -2e-3], dtype=torch.float64).repeat_interleave(torch.tensor(counts))
    logp = (old + shift + torch.randn(16, dtype=torch.float64) * 1e-4).requires_grad_()
    reference = logp.detach().clone().requires_grad_()
    losses = []
    for new, was, a in zip(reference.split(counts), old.split(counts), advantages, strict=True):
        s = (new - was).mean().exp()
        losses.append(torch.maximum(-s * a, -s.clamp(1 - CLIP.low, 1 + CLIP.high) * a))
    expected = torch.stack(losses).mean()
    expected.backward()
    out = loss_of(logp, old, advantages, counts)
    out.loss.backward()
    assert logp.grad is not None
    assert reference.grad is not None
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-14)
    assert torch.allclose(logp.grad, reference.grad, atol=1e-14)
    assert out.clipped_U.tolist() == [True, False, False, True]


def test_a_correction_scales_the_gradient_of_its_own_token_alone() -> None:
    old = torch.tensor([-1.0, -2.0, -3.0])
    logp = old.clone().requires_grad_()
    loss_of(logp, old, [1.0], [3], weight=torch.tensor([1.0, 2.0, 0.5])).loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1 / 3, -2 / 3, -1 / 6])


def test_a_rejected_sequence_adds_nothing_but_stays_in_the_normaliser() -> None:
    old = torch.tensor([-1.0, -2.0])
    logp = old.clone().requires_grad_()
    out = loss_of(logp, old, [1.0, 1.0], [1, 1], keep=[True, False])
    out.loss.backward()
    assert logp.grad is not None
    assert out.loss.item() == pytest.approx(-0.5)
    assert logp.grad.tolist() == pytest.approx([-0.5, 0.0])


def test_micro_batches_add_up_to_the_whole() -> None:
    torch.manual_seed(1)
    old = -torch.rand(9)
    logp = old + torch.randn(9) * 1e-3
    whole = loss_of(logp, old, [1.0, -1.0, 0.5], [3, 2, 4]).loss
    first = loss_of(logp[:5], old[:5], [1.0, -1.0], [3, 2]).loss * 2 / 3
    second = loss_of(logp[5:], old[5:], [0.5], [4]).loss / 3
    assert float(whole) == pytest.approx(float(first + second), abs=1e-6)


def test_an_exploded_ratio_is_finite() -> None:
    old = torch.tensor([-500.0])
    assert math.isfinite(float(loss_of(torch.tensor([-0.1]), old, [-1.0], [1]).loss))


def test_half_precision_is_refused() -> None:
    half = torch.tensor([-1.0], dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="float32"):
        loss_of(half, half, [1.0], [1])

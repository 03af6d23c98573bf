"""The losses beside GSPO against hand-made vectors and plain formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from synth.trainer.learner.losses.base import Clip, LossOutput
from synth.trainer.learner.losses.cispo import cispo_loss
from synth.trainer.learner.losses.dppo import dppo_loss
from synth.trainer.learner.losses.grpo import grpo_loss
from synth.trainer.learner.losses.gspo import gspo_loss, gspo_token_loss
from tests.unit.trainer.loss_inputs import gradient, loss_inputs

TIGHT, WIDE, FAR = Clip(low=3e-4, high=4e-4), Clip(low=0.2, high=0.28), Clip(low=0.2, high=0.2)
MAX_WEIGHT = Clip(low=1.0, high=3.0)
ALL = [(gspo_loss, TIGHT), (gspo_token_loss, TIGHT), (grpo_loss, WIDE), (dppo_loss, FAR), (cispo_loss, MAX_WEIGHT)]


def check(out: LossOutput, logp: Tensor, *, loss: float, slopes: list[float], clipped: list[bool]) -> None:
    assert out.loss.item() == pytest.approx(loss, abs=2e-6)
    assert gradient(out.loss, logp).tolist() == pytest.approx(slopes, abs=2e-6)
    assert out.clipped_U.tolist() == clipped


@pytest.mark.parametrize(
    ("log_ratios", "advantages", "loss", "slopes", "clipped"),
    [
        ((0.0002, 0.0004), (1, -1), 0.0, [-0.500150, 0.500150], [False, False]),
        ((0.01, -0.002), (1, -1), (1.004008011 - 1.0004) / 2, [0.0, 0.502004], [True, False]),
        ((-0.01, 0.002), (1, -2), (-0.996007989 + 2 * 0.9997) / 2, [-0.498004, 0.0], [False, True]),
        ((0.01, -0.002), (0, 1), -1.0004 / 2, [0.0, 0.0], [False, True]),
    ],
)
def test_gspo_token_gives_the_hand_vectors(
    log_ratios: tuple[float, float],
    advantages: tuple[float, float],
    loss: float,
    slopes: list[float],
    clipped: list[bool],
) -> None:
    old = torch.tensor([-1.5, -0.5])
    logp = (old + torch.tensor(log_ratios)).requires_grad_()
    credit = torch.tensor(advantages, dtype=torch.float32)
    out = gspo_token_loss(loss_inputs(logp, old, [9.0], [2], token_advantages=credit), clip=TIGHT)
    check(out, logp, loss=loss, slopes=slopes, clipped=clipped)


@pytest.mark.parametrize(
    ("ratios", "advantage", "loss", "slopes", "clipped"),
    [
        ((1.1, 1.5), 1, -(1.1 + 1.28) / 2, [-0.55, 0.0], [False, True]),
        ((0.9, 0.7), 1, -(0.9 + 0.7) / 2, [-0.45, -0.35], [False, False]),
        ((0.9, 0.7), -1, (0.9 + 0.8) / 2, [0.45, 0.0], [False, True]),
        ((1.1, 1.5), -1, (1.1 + 1.5) / 2, [0.55, 0.75], [False, False]),
    ],
)
def test_grpo_gives_the_hand_vectors(
    ratios: tuple[float, float], advantage: float, loss: float, slopes: list[float], clipped: list[bool]
) -> None:
    old = torch.tensor([-1.5, -0.5])
    logp = (old + torch.tensor(ratios).log()).requires_grad_()
    check(
        grpo_loss(loss_inputs(logp, old, [advantage], [2]), clip=WIDE),
        logp,
        loss=loss,
        slopes=slopes,
        clipped=clipped,
    )


@pytest.mark.parametrize(
    ("ratios", "advantage", "loss", "slopes", "clipped"),
    [
        # Beyond 3 an unwanted token pushes no harder; nothing changes below it, nor for a wanted one.
        ((2.0, 5.0), -1, (2.0 + 3.0) / 2, [1.0, 0.0], [False, True]),
        ((2.0, 5.0), -2, (4.0 + 6.0) / 2, [2.0, 0.0], [False, True]),
        ((0.7, 5.0), -1, (0.8 + 3.0) / 2, [0.0, 0.0], [True, True]),
        ((1.1, 5.0), 1, -(1.1 + 1.28) / 2, [-0.55, 0.0], [False, True]),
    ],
)
def test_the_dual_clip_of_grpo_gives_the_hand_vectors(
    ratios: tuple[float, float], advantage: float, loss: float, slopes: list[float], clipped: list[bool]
) -> None:
    old = torch.tensor([-2.5, -2.0])
    logp = (old + torch.tensor(ratios).log()).requires_grad_()
    out = grpo_loss(loss_inputs(logp, old, [advantage], [2]), clip=Clip(0.2, 0.28, dual=3.0))
    check(out, logp, loss=loss, slopes=slopes, clipped=clipped)


@pytest.mark.parametrize(
    ("ratios", "advantage", "weights", "clipped"),
    [
        # No token loses its gradient; what it counts is at most 1 + high, and has no lower bound where low is 1.
        ((1.5, 9.0), 1, (1.5, 4.0), [False, True]),
        ((1.5, 9.0), -1, (1.5, 4.0), [False, True]),
        ((0.01, 1.0), 2, (0.01, 1.0), [False, False]),
        ((0.01, 9.0), 0, (0.01, 4.0), [False, False]),
    ],
)
def test_cispo_gives_the_hand_vectors(
    ratios: tuple[float, float], advantage: float, weights: tuple[float, float], clipped: list[bool]
) -> None:
    old = torch.tensor([-7.0, -3.0])
    logp = (old + torch.tensor(ratios).log()).requires_grad_()
    out = cispo_loss(loss_inputs(logp, old, [advantage], [2]), clip=Clip(1.0, 3.0))
    values = [-weight * advantage * of / 2 for weight, of in zip(weights, logp.tolist(), strict=True)]
    check(out, logp, loss=sum(values), slopes=[-weight * advantage / 2 for weight in weights], clipped=clipped)


def test_cispo_has_a_lower_bound_where_it_is_asked_for() -> None:
    old = torch.tensor([-1.0])
    logp = (old + math.log(0.1)).requires_grad_()
    out = cispo_loss(loss_inputs(logp, old, [1.0], [1], weight=torch.tensor([2.0])), clip=Clip(0.5, 3.0))
    check(out, logp, loss=2 * 0.5 * (1 - math.log(0.1)), slopes=[-2 * 0.5], clipped=[True])


@pytest.mark.parametrize(
    ("probabilities", "advantage", "loss", "slopes", "clipped"),
    [
        # (μ, π) of each token: a rare one may double ten times over, a likely one may not rise by 0.3.
        (((0.001, 0.01), (0.5, 0.8)), 1, -10 / 2, [-5.0, 0.0], [False, True]),
        (((0.001, 0.01), (0.5, 0.8)), -1, (10 + 1.6) / 2, [5.0, 0.8], [False, False]),
        (((0.5, 0.2), (0.5, 0.4)), -1, 0.8 / 2, [0.0, 0.4], [True, False]),
        (((0.5, 0.2), (0.5, 0.4)), 1, -(0.4 + 0.8) / 2, [-0.2, -0.4], [False, False]),
    ],
)
def test_dppo_gives_the_hand_vectors(
    probabilities: tuple[tuple[float, float], ...],
    advantage: float,
    loss: float,
    slopes: list[float],
    clipped: list[bool],
) -> None:
    old, now = torch.tensor(probabilities, dtype=torch.float64).log().unbind(1)
    logp = now.clone().requires_grad_()
    check(
        dppo_loss(loss_inputs(logp, old, [advantage], [2]), clip=FAR),
        logp,
        loss=loss,
        slopes=slopes,
        clipped=clipped,
    )


def test_the_trust_region_of_dppo_is_around_the_policy_that_sampled() -> None:
    logp = torch.tensor([0.8, 0.8]).log().requires_grad_()
    sampled = torch.tensor([0.5, 0.7]).log()
    out = dppo_loss(loss_inputs(logp, logp.detach(), [1.0], [2], behaviour=sampled), clip=FAR)
    check(out, logp, loss=-0.5, slopes=[0.0, -0.5], clipped=[True, False])


COUNTS = [3, 1, 5, 7]
ADVANTAGES = [1.0, -0.7, 0.4, -1.2]


def plain_grpo(new: Tensor, old: Tensor, a: float) -> Tensor:
    r = (new - old).exp()
    return torch.minimum(r * a, r.clamp(1 - WIDE.low, 1 + WIDE.high) * a).mean()


def plain_gspo_token(new: Tensor, old: Tensor, a: float) -> Tensor:
    s = (new - old).mean().exp().detach() * new.exp() / new.exp().detach()
    return torch.minimum(s * a, s.clamp(1 - TIGHT.low, 1 + TIGHT.high) * a).mean()


def plain_dppo(new: Tensor, old: Tensor, a: float) -> Tensor:
    total = torch.zeros((), dtype=new.dtype)
    for logp, was in zip(new, old, strict=True):
        rise = float(logp.detach().exp() - was.exp())
        if not (a > 0 and rise > FAR.high) and not (a < 0 and -rise > FAR.low):
            total = total + (logp - was).exp() * a
    return total / len(new)


def plain_cispo(new: Tensor, old: Tensor, a: float) -> Tensor:
    return ((new - old).exp().detach().clamp(1 - WIDE.low, 1 + WIDE.high) * a * new).mean()


def plain_dual_grpo(new: Tensor, old: Tensor, a: float) -> Tensor:
    r = (new - old).exp()
    one = torch.minimum(r * a, r.clamp(1 - WIDE.low, 1 + WIDE.high) * a)
    return (torch.maximum(one, torch.full_like(one, 1.4 * a)) if a < 0 else one).mean()


@pytest.mark.parametrize(
    ("loss", "clip", "plain", "scale"),
    [
        (cispo_loss, WIDE, plain_cispo, 0.3),
        (grpo_loss, Clip(WIDE.low, WIDE.high, dual=1.4), plain_dual_grpo, 0.5),
        (grpo_loss, WIDE, plain_grpo, 0.3),
        (gspo_token_loss, TIGHT, plain_gspo_token, 2e-3),
        (dppo_loss, FAR, plain_dppo, 0.5),
    ],
)
def test_gradients_are_those_of_the_plain_formulas_in_float64(loss: Any, clip: Clip, plain: Any, scale: float) -> None:
    torch.manual_seed(0)
    old = -torch.rand(sum(COUNTS), dtype=torch.float64)
    logp = (old + torch.randn(sum(COUNTS), dtype=torch.float64) * scale).clamp(max=-1e-3).requires_grad_()
    rows = zip(logp.split(COUNTS), old.split(COUNTS), ADVANTAGES, strict=True)
    expected = -torch.stack([plain(new, was, a) for new, was, a in rows]).mean()
    out = loss(loss_inputs(logp, old, ADVANTAGES, COUNTS), clip=clip)
    assert 0 < int(out.clipped_U.sum()) < sum(COUNTS)
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-14)
    assert torch.allclose(gradient(out.loss, logp), gradient(expected, logp), atol=1e-14)


@pytest.mark.parametrize("log_ratios", [(0.0002, 0.0004), (0.01, -0.002), (-0.01, 0.002)])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_gspo_token_is_gspo_when_a_sequence_has_one_advantage(
    log_ratios: tuple[float, float], advantage: float
) -> None:
    old = torch.tensor([-1.5, -0.5], dtype=torch.float64)
    logp = (old + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_()
    inputs = loss_inputs(logp, old, [advantage], [2], weight=torch.tensor([1.0, 0.5]))
    whole, by_token = gspo_loss(inputs, clip=TIGHT), gspo_token_loss(inputs, clip=TIGHT)
    assert whole.loss.item() == by_token.loss.item()
    assert torch.equal(gradient(whole.loss, logp), gradient(by_token.loss, logp))
    assert by_token.clipped_U.tolist() == whole.clipped_U.tolist() * 2


@pytest.mark.parametrize(("loss", "clip"), ALL)
def test_on_policy_every_loss_is_reinforce_with_its_correction(loss: Any, clip: Clip) -> None:
    old = torch.tensor([-1.0, -2.0, -3.0, -0.1])
    logp = old.clone().requires_grad_()
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    inputs = loss_inputs(logp, old, [1.0, -1.0, 2.0], [2, 1, 1], weight=weight, keep=[True, True, False])
    out = loss(inputs, clip=clip)
    # −w·A within a sequence's mean, over all three sequences; the rejected one adds nothing.
    assert gradient(out.loss, logp).tolist() == pytest.approx([-1 / 6, -2 / 6, 0.5 / 3, 0.0])
    assert not out.clipped_U.any()


@pytest.mark.parametrize(("loss", "clip"), [pair for pair in ALL if pair[0] is not cispo_loss])
def test_a_ratio_that_exploded_is_finite_and_still_pushes_back(loss: Any, clip: Clip) -> None:
    logp = torch.tensor([-0.1]).requires_grad_()
    out = loss(loss_inputs(logp, torch.tensor([-500.0]), [-1.0], [1]), clip=clip)
    assert math.isfinite(out.loss.item())
    assert gradient(out.loss, logp).item() > 1000

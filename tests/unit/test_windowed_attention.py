"""Attention within windows and beside sinks, against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synth import windowed_attention
from synth.windowed_attention import causal_attention, masked_attention, within_window


def by_definition(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, sinks: Tensor | None) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    out = torch.zeros_like(q)
    for at in range(q.shape[2]):
        first = 0 if window is None else max(0, at - window + 1)
        scores = (q[:, :, at, None] * k[:, :, first : at + 1]).sum(-1) * scale
        powers = scores.exp()
        total = powers.sum(-1) + (0 if sinks is None else sinks.exp())
        out[:, :, at] = (powers[..., None] * v[:, :, first : at + 1]).sum(2) / total[..., None]
    return out


def tensors(length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, heads, length, 8, generator=draw, dtype=torch.float64) for heads in (4, 2, 2))
    return q, k, v, torch.randn(4, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("block", [4, 1024])
def test_each_position_sees_its_window(
    window: int | None, with_sinks: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windowed_attention, "_BLOCK", block)
    q, k, v, sinks = tensors(11)
    given = sinks if with_sinks else None
    out = causal_attention(q, k, v, scale=0.3, window=window, sinks_H=given)
    # A softmax is computed in float32 beside sinks.
    torch.testing.assert_close(
        out, by_definition(q, k, v, scale=0.3, window=window, sinks=given), rtol=0, atol=1e-6 if with_sinks else 1e-12
    )


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_step_of_rows_of_several_lengths_sees_what_a_prefill_would(with_sinks: bool) -> None:
    q, k, v, sinks = tensors(12)
    given, lengths = (sinks if with_sinks else None), torch.tensor([12, 9])
    mask = torch.zeros(2, 1, 1, 12, dtype=torch.float64)
    mask.masked_fill_((torch.arange(12) >= lengths[:, None])[:, None, None], -torch.inf)
    step = masked_attention(
        torch.stack([q[i, :, n - 1 : n] for i, n in enumerate(lengths.tolist())]),
        k,
        v,
        within_window(mask, 5),
        scale=0.3,
        sinks_H=given,
    )
    whole = by_definition(q, k, v, scale=0.3, window=5, sinks=given)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(step[row, :, 0], whole[row, :, length - 1], rtol=0, atol=1e-6)


def test_sinks_and_keys_have_a_gradient_through_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_attention, "_BLOCK", 4)
    inputs = [x.requires_grad_() for x in tensors(10)]
    q, k, v, sinks = inputs
    found = torch.autograd.grad(causal_attention(q, k, v, scale=0.3, window=3, sinks_H=sinks).square().sum(), inputs)
    wanted = torch.autograd.grad(by_definition(q, k, v, scale=0.3, window=3, sinks=sinks).square().sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)

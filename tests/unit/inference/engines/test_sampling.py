"""One vectorised draw for rows with different settings."""

from __future__ import annotations

import torch
from torch import Tensor

from synth.inference.engines.sampling import SamplingTensors, sample_tokens


def sampling(
    n: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, ban: list[int] | None = None
) -> SamplingTensors:
    pairs = torch.tensor([(row, token) for row in range(n) for token in ban or []]).reshape(-1, 2).T
    return SamplingTensors(
        temperature_N=torch.full((n,), temperature),
        top_p_N=torch.full((n,), top_p),
        top_k_N=torch.full((n,), top_k),
        banned=(pairs[0], pairs[1]) if ban else None,
        greedy=temperature == 0,
        filtered=top_p < 1 or top_k > 0,
    )


def uniform(n: int) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def logits(n: int) -> Tensor:
    row = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    return row.expand(n, -1).clone()


def frequencies(tokens: Tensor) -> Tensor:
    return torch.bincount(tokens, minlength=6) / len(tokens)


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    n = 200_000
    for temperature in (0.5, 1.0, 2.0):
        tokens, logp = sample_tokens(logits(n), sampling(n, temperature=temperature), uniform(n))
        p = torch.softmax(logits(1)[0] / temperature, -1)
        assert (frequencies(tokens) - p).abs().max() < 0.004
        assert torch.allclose(logp, p.log()[tokens], atol=1e-6)


def test_top_k_and_top_p_keep_the_best_and_renormalise() -> None:
    n = 100_000
    p = torch.softmax(logits(1)[0], -1)
    tokens, logp = sample_tokens(logits(n), sampling(n, top_k=2), uniform(n))
    assert set(tokens.tolist()) == {0, 1}
    assert torch.allclose(logp, (p / p[:2].sum()).log()[tokens], atol=1e-6)
    # p = .55 .20 .12 …: .7 is crossed by the second token, so two stay.
    tokens, logp = sample_tokens(logits(n), sampling(n, top_p=0.7), uniform(n))
    assert set(tokens.tolist()) == {0, 1}
    assert torch.allclose(logp, (p / p[:2].sum()).log()[tokens], atol=1e-6)
    tokens, logp = sample_tokens(logits(n), sampling(n, top_p=0.0), uniform(n))
    assert set(tokens.tolist()) == {0}
    assert torch.allclose(logp, torch.zeros(n))


def test_a_banned_token_is_never_drawn_not_even_at_the_edge() -> None:
    edge = torch.tensor([0.0, 1.0 - 2**-53, 1.0], dtype=torch.float64)
    tokens, logp = sample_tokens(logits(3), sampling(3, ban=[0, 5]), edge)
    assert tokens.tolist() == [1, 4, 4]
    assert torch.isfinite(logp).all()


def test_rows_with_different_settings_do_not_touch_each_other() -> None:
    n = 4
    mixed = SamplingTensors(
        temperature_N=torch.tensor([0.0, 1.0, 1.0, 0.7]),
        top_p_N=torch.tensor([1.0, 1.0, 0.5, 1.0]),
        top_k_N=torch.tensor([0, 0, 0, 3]),
        banned=(torch.tensor([1]), torch.tensor([0])),
        greedy=True,
        filtered=True,
    )
    noise = torch.randn(n, 50, generator=torch.Generator().manual_seed(1))
    u = uniform(n)
    tokens, logp = sample_tokens(noise, mixed, u)
    for i in range(n):
        alone = SamplingTensors(
            temperature_N=mixed.temperature_N[i : i + 1],
            top_p_N=mixed.top_p_N[i : i + 1],
            top_k_N=mixed.top_k_N[i : i + 1],
            banned=(torch.tensor([0]), torch.tensor([0])) if i == 1 else None,
            greedy=True,
            filtered=True,
        )
        token, lp = sample_tokens(noise[i : i + 1], alone, u[i : i + 1])
        assert (token.item(), lp.item()) == (tokens[i].item(), logp[i].item())
    assert tokens[0] == noise[0].argmax()

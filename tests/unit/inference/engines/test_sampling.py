"""One vectorised draw for rows with different settings."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from synth.inference.engines.sampling import Penalties, SamplingTensors, sample_tokens


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
        tokens, logp, _ = sample_tokens(logits(n), sampling(n, temperature=temperature), uniform(n))
        p = torch.softmax(logits(1)[0] / temperature, -1)
        assert (frequencies(tokens) - p).abs().max() < 0.004
        assert torch.allclose(logp, p.log()[tokens], atol=1e-6)


def test_top_k_and_top_p_keep_the_best_and_renormalise() -> None:
    n = 100_000
    p = torch.softmax(logits(1)[0], -1)
    tokens, logp, _ = sample_tokens(logits(n), sampling(n, top_k=2), uniform(n))
    assert set(tokens.tolist()) == {0, 1}
    assert torch.allclose(logp, (p / p[:2].sum()).log()[tokens], atol=1e-6)
    # p = .55 .20 .12 …: .7 is crossed by the second token, so two stay.
    tokens, logp, _ = sample_tokens(logits(n), sampling(n, top_p=0.7), uniform(n))
    assert set(tokens.tolist()) == {0, 1}
    assert torch.allclose(logp, (p / p[:2].sum()).log()[tokens], atol=1e-6)
    tokens, logp, _ = sample_tokens(logits(n), sampling(n, top_p=0.0), uniform(n))
    assert set(tokens.tolist()) == {0}
    assert torch.allclose(logp, torch.zeros(n))


def test_a_banned_token_is_never_drawn_not_even_at_the_edge() -> None:
    edge = torch.tensor([0.0, 1.0 - 2**-53, 1.0], dtype=torch.float64)
    tokens, logp, _ = sample_tokens(logits(3), sampling(3, ban=[0, 5]), edge)
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
    tokens, logp, _ = sample_tokens(noise, mixed, u)
    for i in range(n):
        alone = SamplingTensors(
            temperature_N=mixed.temperature_N[i : i + 1],
            top_p_N=mixed.top_p_N[i : i + 1],
            top_k_N=mixed.top_k_N[i : i + 1],
            banned=(torch.tensor([0]), torch.tensor([0])) if i == 1 else None,
            greedy=True,
            filtered=True,
        )
        token, lp, _ = sample_tokens(noise[i : i + 1], alone, u[i : i + 1])
        assert (token.item(), lp.item()) == (tokens[i].item(), logp[i].item())
    assert tokens[0] == noise[0].argmax()


def test_bias_and_penalties_are_openais_formulas_and_leave_other_rows_to_the_bit() -> None:
    noise, u = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)), uniform(3)
    plain = sampling(3, temperature=0.7)
    # Row 1: the prompt is [4, 4]; the reply so far 7, 7, 9. What stands beyond its length is another request's.
    history = torch.tensor([[1, 2, 3, 4, 5, 6], [4, 4, 7, 7, 9, 8], [1, 2, 3, 4, 5, 6]]), torch.tensor([6, 5, 2])
    changed = replace(
        plain,
        bias=(torch.tensor([1, 1]), torch.tensor([3, 9]), torch.tensor([2.5, -100.0])),
        penalties=Penalties(torch.tensor([1]), torch.tensor([0.5]), torch.tensor([-0.25]), torch.tensor([2])),
        history=history,
        listed=(torch.tensor([1, 2]), 4),
    )
    tokens, logp, likeliest = sample_tokens(noise, changed, u)
    expected = noise[1].clone()
    expected[3] += 2.5
    expected[7] -= 2 * 0.5 - 0.25
    expected[9] -= 100 + 0.5 - 0.25
    expected = torch.log_softmax(expected / 0.7, -1)
    assert torch.allclose(logp[1], expected[tokens[1]], atol=1e-6)
    assert likeliest is not None
    (of_row, other), (logp_of_row, _) = likeliest
    assert torch.allclose(logp_of_row, expected.topk(4).values, atol=1e-6)
    assert (of_row == expected.topk(4).indices).all()
    assert (other == noise[2].topk(4).indices).all()
    alone, alone_logp, none = sample_tokens(noise, plain, u)
    assert none is None
    assert tokens[[0, 2]].equal(alone[[0, 2]])
    assert logp[[0, 2]].equal(alone_logp[[0, 2]])


def test_a_bias_and_a_penalty_change_the_likeliest_token_too() -> None:
    greedy = sampling(1, temperature=0)
    away = replace(greedy, bias=(torch.tensor([0]), torch.tensor([0]), torch.tensor([-100.0])))
    assert sample_tokens(logits(1), away, uniform(1))[0].tolist() == [1]
    often = Penalties(torch.tensor([0]), torch.tensor([0.6]), torch.tensor([0.0]), torch.tensor([0]))
    for times, likeliest in ((1, 0), (2, 1)):
        history = torch.zeros(1, 4, dtype=torch.int64), torch.tensor([times])
        tokens, _, _ = sample_tokens(logits(1), replace(greedy, penalties=often, history=history), uniform(1))
        assert tokens.tolist() == [likeliest]

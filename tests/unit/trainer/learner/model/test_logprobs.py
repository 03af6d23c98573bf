"""The chunked head is the full head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from synth.models.architectures import PLAIN, LogitRule
from synth.trainer.learner.data.allowed_tokens import AllowedTokens
from synth.trainer.learner.model.logprobs import token_logprobs
from synth.trajectories import TokenMasks, TokenSet


@pytest.mark.parametrize("chunk_elements", [1 << 25, 37 * 4, 37])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("rule", [PLAIN, LogitRule(scale=0.25), LogitRule(scale=2.0, cap=3.0)])
def test_chunks_give_the_logprobs_entropy_and_gradients_of_the_whole(
    chunk_elements: int, temperature: float, constrained: bool, rule: LogitRule
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    head = torch.randn(37, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(37, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 37, (11,))
    slope = torch.randn(11, dtype=torch.float64)
    logits = (hidden @ head.T + bias) * rule.scale
    if rule.cap is not None:
        logits = torch.tanh(logits / rule.cap) * rule.cap
    logits = logits / temperature
    allowed = None
    if constrained:
        # Few tokens at some positions, most at others, all at the rest.
        allowed_NV = torch.rand(11, 37) < torch.tensor([0.1, 0.8, 2.0] * 4)[:11, None]
        allowed_NV[torch.arange(11), target] = True
        sets = [None if row.all() else TokenSet.of(row.numpy()) for row in allowed_NV]
        masks = TokenMasks.of(sets)
        assert masks is not None
        allowed = AllowedTokens.of(masks, np.arange(11), "cpu")
        logits = logits.masked_fill(~allowed_NV, -torch.inf)
    full = torch.log_softmax(logits, -1)
    expected = full.gather(1, target[:, None]).squeeze(1)
    expected_grads = torch.autograd.grad((expected * slope).sum(), (hidden, head, bias), retain_graph=True)

    logp, entropy = token_logprobs(
        hidden,
        head,
        target,
        bias_V=bias,
        rule=rule,
        temperature=temperature,
        allowed=allowed,
        chunk_elements=chunk_elements,
    )
    grads = torch.autograd.grad((logp * slope).sum(), (hidden, head, bias))

    assert torch.allclose(logp, expected, atol=1e-12)
    assert torch.allclose(entropy, -torch.xlogy(full.exp(), full.exp()).sum(-1), atol=1e-12)
    assert not entropy.requires_grad
    for mine, reference in zip(grads, expected_grads, strict=True):
        assert torch.allclose(mine, reference, atol=1e-12)


def test_the_logits_of_one_chunk_are_all_there_are_at_one_time() -> None:
    """Also in the backward, which makes them again."""
    largest: list[int] = [0]

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            largest[0] = max([largest[0], *(t.numel() for t in (out if isinstance(out, tuple | list) else (out,)))])
            return out

    hidden = torch.randn(400, 8, requires_grad=True)
    head = torch.randn(50, 8, requires_grad=True)
    with Recorder():
        logp, _ = token_logprobs(hidden, head, torch.zeros(400, dtype=torch.int64), chunk_elements=20 * 50)
        logp.sum().backward()
    # Hidden states and their gradient are 400 x 8; the logits of all positions would be 400 x 50.
    assert largest[0] == 400 * 8


def test_half_precision_hidden_states_are_scored_in_float32() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(16, 8)
    logp, _ = token_logprobs(hidden, head, torch.tensor([1, 2, 3, 4]))
    exact = torch.log_softmax(hidden.float() @ head.T, -1)[torch.arange(4), torch.tensor([1, 2, 3, 4])]
    assert logp.dtype == torch.float32
    assert torch.equal(logp, exact)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden = torch.randn(6, 8, requires_grad=True)
    head = torch.randn(5, 8)
    logp, _ = token_logprobs(hidden, head, torch.zeros(6, dtype=torch.int64), chunk_elements=10)
    logp.sum().backward()
    assert hidden.grad is not None
    assert head.grad is None

"""Log-probabilities of given tokens, without the [tokens × vocabulary] matrix.

Shapes: N positions, in chunks of C; D hidden, V vocabulary. The logits, the division by the temperature and the
log-softmax are float32 for any dtype of the model: in bfloat16 a ratio of 1.0003 is 1.0, and GSPO's whole clip band is
0.0007 wide. A GPU's tensor cores sum products of bfloat16 in float32, so bfloat16 operands need no cast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synth.models.architectures import PLAIN, LogitRule
from synth.trainer.learner.data.allowed_tokens import AllowedTokens

# Elements in one chunk of logits: 128 MiB in float32, 220 positions at a vocabulary of 152k; 512 MiB on a GPU, which
# is faster with large products.
CHUNK_ELEMENTS = 1 << 25
GPU_CHUNK_ELEMENTS = 1 << 27


def token_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    target_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    rule: LogitRule = PLAIN,
    temperature: float = 1.0,
    allowed: AllowedTokens | None = None,
    banned: Tensor | None = None,
    chunk_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of the distribution at each position, at the given temperature.

    hidden_ND, head_VD: any float dtype. target_N: int64. bias_V: of the head, if it has one. rule: what the model makes
    of the product. allowed: the tokens that p covers; None: all. banned:
    int64, the tokens that have no probability anywhere. Returns logp_N (float32, nats, with gradient into hidden, head
    and bias) and entropy_N (float32, nats, without gradient).
    chunk_elements: how many logits exist at one time. With more than one chunk, the backward computes each chunk's
    logits again: 1.4 times the time, for a peak memory that no longer grows with N.
    """
    on_gpu = hidden_ND.is_cuda
    chunk_size = max(1, (chunk_elements or (GPU_CHUNK_ELEMENTS if on_gpu else CHUNK_ELEMENTS)) // head_VD.shape[0])
    if hidden_ND.shape[0] <= chunk_size and not on_gpu:
        forbidden_NV = _forbidden(allowed, banned, slice(None), head_VD)
        return _unchunked(_raw_logits(hidden_ND, head_VD, bias_V, rule), target_N, temperature, forbidden_NV)
    return _ChunkedLogprobs.apply(  # pyright: ignore[reportReturnType]
        hidden_ND, head_VD, bias_V, target_N, rule, temperature, allowed, banned, chunk_size
    )


def _unchunked(
    logits_NV: Tensor, target_N: Tensor, temperature: float, forbidden_NV: Tensor | None
) -> tuple[Tensor, Tensor]:
    logprob_NV = _allowed_logits(logits_NV, temperature, forbidden_NV).log_softmax(-1)
    logp_N = logprob_NV.gather(1, target_N[:, None]).squeeze(1)
    with torch.no_grad():
        # A token that cannot come adds 0, which 0 times its infinite logprob is not.
        finite_NV = logprob_NV if forbidden_NV is None else logprob_NV.masked_fill(forbidden_NV, 0.0)
        entropy_N = -(logprob_NV.exp() * finite_NV).sum(-1)
    return logp_N, entropy_N


def _raw_logits(hidden_ND: Tensor, head_VD: Tensor, bias_V: Tensor | None, rule: LogitRule) -> Tensor:
    product_NV = _matmul_float32(hidden_ND, head_VD.T)
    return rule.logits(product_NV if bias_V is None else product_NV + bias_V)


def _allowed_logits(logits_NV: Tensor, temperature: float, forbidden_NV: Tensor | None) -> Tensor:
    if forbidden_NV is not None:
        logits_NV = logits_NV.masked_fill(forbidden_NV, -torch.inf)
    return logits_NV if temperature == 1.0 else logits_NV / temperature


def _forbidden(
    allowed: AllowedTokens | None, banned: Tensor | None, positions: slice, head_VD: Tensor
) -> Tensor | None:
    """Return bool [C, V], or [1, V] if all positions are alike; None if every token could come."""
    forbidden = None if allowed is None else allowed.forbidden(positions, head_VD.shape[0])
    if banned is None:
        return forbidden
    banned_1V = torch.zeros((1, head_VD.shape[0]), dtype=torch.bool, device=head_VD.device)
    banned_1V[0, banned] = True
    return banned_1V if forbidden is None else forbidden | banned_1V


def _matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product in float32. On tensor cores it has no gradient."""
    if _on_tensor_cores(left, right):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.to(_wide_dtype(left)) @ right.to(_wide_dtype(right))


def _on_tensor_cores(left: Tensor, right: Tensor) -> bool:
    return left.is_cuda and left.dtype == right.dtype == torch.bfloat16


def _wide_dtype(x: Tensor) -> torch.dtype:
    # float64 stays float64: the reference of the tests goes through the same code.
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _ChunkedLogprobs(torch.autograd.Function):
    """`_unchunked` by chunks of C positions. It saves hidden and head only; the backward makes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        rule: LogitRule,
        temperature: float,
        allowed: AllowedTokens | None,
        banned: Tensor | None,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        wide_VD = head_VD if _on_tensor_cores(hidden_ND, head_VD) else head_VD.to(_wide_dtype(head_VD))
        chunks = [
            _unchunked(
                _raw_logits(hidden_ND[chunk], wide_VD, bias_V, rule),
                target_N[chunk],
                temperature,
                _forbidden(allowed, banned, chunk, wide_VD),
            )
            for chunk in _chunks(len(target_N), chunk_size)
        ]
        ctx.save_for_backward(hidden_ND, head_VD, bias_V, target_N)
        ctx.rule, ctx.temperature, ctx.allowed, ctx.banned, ctx.chunk_size = (
            rule,
            temperature,
            allowed,
            banned,
            chunk_size,
        )
        logp_N, entropy_N = torch.cat([c[0] for c in chunks]), torch.cat([c[1] for c in chunks])
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, head_VD, bias_V, target_N = ctx.saved_tensors
        grad_N = grads[0]
        needs_hidden, needs_head, needs_bias = ctx.needs_input_grad[:3]
        wide_VD = head_VD if _on_tensor_cores(hidden_ND, head_VD) else head_VD.to(_wide_dtype(head_VD))
        grad_hidden_ND = torch.empty_like(hidden_ND) if needs_hidden else None
        grad_head_VD = torch.zeros_like(wide_VD, dtype=_wide_dtype(wide_VD)) if needs_head else None
        grad_bias_V = torch.zeros_like(bias_V) if needs_bias else None
        for chunk in _chunks(hidden_ND.shape[0], ctx.chunk_size):
            hidden_CD, target_C, grad_C = hidden_ND[chunk].to(wide_VD.dtype), target_N[chunk], grad_N[chunk]
            # d logp(target) / d logits = (onehot(target) − softmax) / T
            forbidden_CV = _forbidden(ctx.allowed, ctx.banned, chunk, wide_VD)
            logits_CV = _raw_logits(hidden_CD, wide_VD, bias_V, ctx.rule)
            grad_CV = _allowed_logits(logits_CV, ctx.temperature, forbidden_CV).softmax(-1).neg_()
            grad_CV[torch.arange(len(target_C), device=target_C.device), target_C] += 1
            grad_CV *= grad_C[:, None] / ctx.temperature
            if ctx.rule != PLAIN:
                grad_CV *= ctx.rule.slope(logits_CV)
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(0)
            grad_CV = grad_CV.to(wide_VD.dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND[chunk] = _matmul_float32(grad_CV, wide_VD).to(hidden_ND.dtype)
            if grad_head_VD is not None:
                grad_head_VD += _matmul_float32(grad_CV.T, hidden_CD)
        grad_head = None if grad_head_VD is None else grad_head_VD.to(head_VD.dtype)
        return grad_hidden_ND, grad_head, grad_bias_V, None, None, None, None, None, None


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]

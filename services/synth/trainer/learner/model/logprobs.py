"""Log-probabilities of given tokens, without the [tokens × vocabulary] matrix.

Shapes: N positions, D hidden, V vocabulary. The logits, the division by the temperature and the log-softmax are
float32 whatever the model's dtype: in bfloat16 a ratio of 1.0003 is 1.0, and GSPO's whole clip band is 0.0007 wide.
A GPU's tensor cores sum products of bfloat16 in float32, so that operands that are bfloat16 need no cast before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Elements of one chunk of logits: 128 MiB in float32, 220 positions at a vocabulary of 152k; on a GPU, which wants
# large products, 512 MiB.
CHUNK_ELEMENTS = 1 << 25
GPU_CHUNK_ELEMENTS = 1 << 27


def token_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    target_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log p(target) and the entropy of each position's distribution, at the given temperature.

    hidden_ND, head_VD: any float dtype. target_N: int64. Returns logp_N (float32, nats, with gradient into
    hidden and head) and entropy_N (float32, nats, without gradient).
    chunk_elements: of the logits that are there at one time. With more than one chunk, the backward computes each
    chunk's logits again: 1.4 times the time, for a peak memory that no longer grows with N.
    """
    on_gpu = hidden_ND.is_cuda
    chunk_size = max(1, (chunk_elements or (GPU_CHUNK_ELEMENTS if on_gpu else CHUNK_ELEMENTS)) // head_VD.shape[0])
    if hidden_ND.shape[0] <= chunk_size and not on_gpu:
        return _unchunked(hidden_ND, head_VD, target_N, temperature)
    return _ChunkedLogprobs.apply(hidden_ND, head_VD, target_N, temperature, chunk_size)  # pyright: ignore[reportReturnType]


def _unchunked(hidden: Tensor, head: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprob_NV = _logits(hidden, head, temperature).log_softmax(-1)
    chosen_N = logprob_NV.gather(1, target[:, None]).squeeze(1)
    with torch.no_grad():
        entropy_N = -(logprob_NV.exp() * logprob_NV).sum(-1)
    return chosen_N, entropy_N


def _logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = _matmul_float32(hidden, head.T)
    return logits if temperature == 1.0 else logits / temperature


def _matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product in float32; without gradient where the tensor cores make it."""
    if _on_tensor_cores(left, right):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.to(_wide_dtype(left)) @ right.to(_wide_dtype(right))


def _on_tensor_cores(left: Tensor, right: Tensor) -> bool:
    return left.is_cuda and left.dtype == right.dtype == torch.bfloat16


def _wide_dtype(x: Tensor) -> torch.dtype:
    # float64 stays: the tests' reference goes through the same code.
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _ChunkedLogprobs(torch.autograd.Function):
    """`_unchunked` by chunks of chunk_size; keeps hidden and head only, and recomputes the logits to differentiate."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, target: Tensor, temperature: float, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        wide_head = head if _on_tensor_cores(hidden, head) else head.to(_wide_dtype(head))
        parts = [
            _unchunked(h, wide_head, t, temperature)
            for h, t in zip(hidden.split(chunk_size), target.split(chunk_size), strict=True)
        ]
        ctx.save_for_backward(hidden, head, target)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        logp, entropy = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, saved_head, target = ctx.saved_tensors
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        head = saved_head if _on_tensor_cores(hidden, saved_head) else saved_head.to(_wide_dtype(saved_head))
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_head = torch.zeros_like(head, dtype=_wide_dtype(head)) if needs_head else None
        for start in range(0, hidden.shape[0], ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            h, t, g = hidden[chunk].to(head.dtype), target[chunk], grads[0][chunk]
            # d logp(target) / d logits = (onehot(target) − softmax) / T
            grad_logits = _logits(h, head, ctx.temperature).softmax(-1).neg_()
            grad_logits[torch.arange(len(t), device=t.device), t] += 1
            grad_logits *= g[:, None] / ctx.temperature
            grad_logits = grad_logits.to(head.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = _matmul_float32(grad_logits, head).to(hidden.dtype)
            if grad_head is not None:
                grad_head += _matmul_float32(grad_logits.T, h)
        return grad_hidden, None if grad_head is None else grad_head.to(saved_head.dtype), None, None, None

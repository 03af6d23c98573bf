"""Causal attention within a window, with sinks, and with a cap, as in Gemma 2 and 3, Mistral, OLMo 3 and gpt-oss.

q_BHQD, k_BHLD, v_BHLD: H query heads, and as many or fewer heads of keys. A sink is a number for each query head which
the softmax counts as one more score, and which has no value. A cap bounds the scores, smoothly. Trainer and
engine compute all of it here, so that they agree.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

#: Queries of one block. Only its scores are in memory: [queries x (queries + window)] for each head.
_BLOCK = 1024


def causal_attention(
    q_BHLD: Tensor,
    k_BHLD: Tensor,
    v_BHLD: Tensor,
    *,
    scale: float | None,
    window: int | None = None,
    sinks_H: Tensor | None = None,
    cap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from each position to itself and earlier ones, to `window` positions at most. Returns [B, H, L, D]."""
    grouped, length = q_BHLD.shape[1] != k_BHLD.shape[1], q_BHLD.shape[2]
    if sinks_H is None and cap is None and (window is None or length <= window):
        return scaled_dot_product_attention(
            q_BHLD, k_BHLD, v_BHLD, is_causal=True, scale=scale, dropout_p=dropout, enable_gqa=grouped
        )
    blocks: list[Tensor] = []
    for start in range(0, length, _BLOCK):
        stop = min(start + _BLOCK, length)
        first = 0 if window is None else max(0, start - window + 1)
        at_Q1 = torch.arange(start, stop, device=q_BHLD.device)[:, None]
        at_1L = torch.arange(first, stop, device=q_BHLD.device)[None]
        seen_QL = at_1L <= at_Q1
        if window is not None:
            seen_QL &= at_1L > at_Q1 - window
        mask = torch.zeros(seen_QL.shape, dtype=q_BHLD.dtype, device=q_BHLD.device).masked_fill_(~seen_QL, -torch.inf)
        blocks.append(
            masked_attention(
                q_BHLD[:, :, start:stop],
                k_BHLD[:, :, first:stop],
                v_BHLD[:, :, first:stop],
                mask,
                scale=scale,
                sinks_H=sinks_H,
                cap=cap,
                dropout=dropout,
            )
        )
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)


def masked_attention(
    q_BHQD: Tensor,
    k_BHLD: Tensor,
    v_BHLD: Tensor,
    mask: Tensor,
    *,
    scale: float | None,
    sinks_H: Tensor | None = None,
    cap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend under an additive mask that broadcasts to [B, H, Q, L]. Returns [B, H, Q, D]."""
    groups = q_BHQD.shape[1] // k_BHLD.shape[1]
    if sinks_H is None and cap is None:
        return scaled_dot_product_attention(
            q_BHQD, k_BHLD, v_BHLD, attn_mask=mask, scale=scale, dropout_p=dropout, enable_gqa=groups > 1
        )
    if groups > 1:
        k_BHLD, v_BHLD = k_BHLD.repeat_interleave(groups, dim=1), v_BHLD.repeat_interleave(groups, dim=1)
    factor = float(q_BHQD.shape[-1] ** -0.5) if scale is None else scale
    scores_BHQL = q_BHQD @ k_BHLD.transpose(-1, -2) * factor
    if cap is not None:
        scores_BHQL = (scores_BHQL / cap).tanh() * cap
    scores_BHQL = (scores_BHQL + mask).float()
    if sinks_H is None:
        weights = scores_BHQL.softmax(-1).to(q_BHQD.dtype)
    else:
        sink_BHQ1 = sinks_H.float().view(1, -1, 1, 1).expand(*scores_BHQL.shape[:-1], 1)
        weights = torch.cat([scores_BHQL, sink_BHQ1], dim=-1).softmax(-1)[..., :-1].to(q_BHQD.dtype)
    return torch.nn.functional.dropout(weights, dropout) @ v_BHLD if dropout else weights @ v_BHLD


def within_window(mask_B11L: Tensor, window: int | None) -> Tensor:
    """Narrow the mask of one new position a row to the window that ends at the last position that it shows."""
    length = mask_B11L.shape[-1]
    if window is None or length <= window:
        return mask_B11L
    last_B111 = (mask_B11L == 0).sum(-1, keepdim=True) - 1
    before = torch.arange(length, device=mask_B11L.device) <= last_B111 - window
    return mask_B11L.masked_fill(before, -torch.inf)

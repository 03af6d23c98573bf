"""Grouped-query attention over the KV cache, which the model's layers call instead of the library's own wrapper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "synth_grouped_query"


def grouped_query_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [B, Hq, Q, D]; key, value [B, H, L, D]; mask additive [B, 1, 1, L], or None for causal. -> [B, Q, Hq, D].

    In a decode step (Q = 1) the query heads of a group act as the positions of one head, so that keys and values are
    read in place; the library's wrapper first copies them for every query head.
    """
    batch, query_heads, positions, width = query.shape
    heads = key.shape[1]
    if positions == 1:
        grouped = query.reshape(batch, heads, query_heads // heads, width)
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        return out.reshape(batch, 1, query_heads, width), None
    out = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query_heads != heads
    )
    return out.transpose(1, 2), None


def register() -> None:
    """Make the attention known to transformers under `NAME`."""
    AttentionInterface.register(NAME, grouped_query_attention)


def additive_mask(masked_NL: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to attention scores: -inf where `masked_NL` is True, else 0; [N, 1, 1, L]."""
    mask = torch.zeros(masked_NL.shape, dtype=dtype, device=masked_NL.device)
    return mask.masked_fill_(masked_NL, -torch.inf)[:, None, None, :]

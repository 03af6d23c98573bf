"""Grouped-query attention over the KV cache, which the model's layers call instead of the library's own wrapper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from synth.windowed_attention import causal_attention, masked_attention, within_window

NAME = "synth_grouped_query"


def grouped_query_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend: query [B, Hq, Q, D]; key, value [B, H, L, D]; mask additive [B, 1, 1, L] or None (causal). -> [B, Q, Hq,
    D].

    sliding_window: positions that one attends to at most, of a layer that has a window. s_aux: the layer's sinks, [Hq].
    softcap: of the scores.

    In a decode step (Q = 1) the query heads of a group act as the positions of one head, so that keys and values are
    read in place; the library's wrapper first copies them for every query head.
    """
    batch, query_heads, positions, width = query.shape
    heads = key.shape[1]
    if attention_mask is not None:
        attention_mask = within_window(attention_mask, sliding_window)
    by_kernel = s_aux is None and softcap is None
    if not by_kernel and attention_mask is not None:
        out = masked_attention(query, key, value, attention_mask, scale=scaling, sinks_H=s_aux, cap=softcap)
        return out.transpose(1, 2), None
    if positions == 1 and by_kernel:
        grouped = query.reshape(batch, heads, query_heads // heads, width)
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        return out.reshape(batch, 1, query_heads, value.shape[-1]), None
    out = causal_attention(query, key, value, scale=scaling, window=sliding_window, sinks_H=s_aux, cap=softcap)
    return out.transpose(1, 2), None


def register() -> None:
    """Make the attention known to transformers under `NAME`."""
    AttentionInterface.register(NAME, grouped_query_attention)


def additive_mask(masked_NL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to attention scores: -inf where `masked_NL` is True, else 0; [N, 1, 1, L]."""
    mask = torch.zeros(masked_NL.shape, dtype=dtype, device=masked_NL.device)
    return mask.masked_fill_(masked_NL, -torch.inf)[:, None, None, :]

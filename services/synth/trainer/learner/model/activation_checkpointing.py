"""Which operators activation checkpointing does not run again in the backward pass."""

from __future__ import annotations

from typing import Any

import torch


def ops_saved_by_checkpointing() -> set[Any]:
    """Return the operators whose outputs are kept: those of attention, which are the most expensive to run again."""
    names = (
        (torch.ops.aten, "_scaled_dot_product_flash_attention"),
        (torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"),
        (torch.ops.aten, "_scaled_dot_product_efficient_attention"),
        (torch.ops.aten, "_scaled_dot_product_cudnn_attention"),
        (torch.ops.torch_attn, "_varlen_attn"),
        (torch.ops.flash_attn, "_flash_attn_varlen_forward"),
        (torch.ops.flash_attn_3, "fwd"),
    )
    return {getattr(space, name).default for space, name in names if hasattr(space, name)}

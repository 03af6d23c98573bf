"""Layers with experts on a CPU, as vLLM 0.32 has them. Imported in the engine process."""

from __future__ import annotations

from typing import Any

import vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method as method  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn


def pack_reloaded_experts() -> None:
    """vLLM packs experts for a CPU when it builds their kernel, and builds no second one for new weights.

    During a layer-wise reload the layer holds tensors of its own, in the layout of the files. What they are packed to
    is copied into those that the kernel reads.
    """
    set_up = method.UnquantizedFusedMoEMethod._setup_kernel

    def packed(self: Any, layer: nn.Module, w13: Tensor, w2: Tensor) -> None:
        reloaded = self.moe_kernel is not None
        set_up(self, layer, w13, w2)
        if reloaded:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    method.UnquantizedFusedMoEMethod._setup_kernel = packed


def compute_experts_beside_adapters() -> None:
    """Where any layer can have an adapter, vLLM computes experts with Triton, which no CPU has: it dies at the first
    request. No adapter of ours reaches experts (`BaseModelInfo.adaptable`), so those of a host without any do.
    """
    select = method.select_unquantized_moe_backend

    def selected(moe_config: Any) -> Any:
        moe_config.is_lora_enabled = False
        return select(moe_config=moe_config)

    method.select_unquantized_moe_backend = selected

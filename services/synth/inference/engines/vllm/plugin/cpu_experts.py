"""Layers with experts on a CPU, as vLLM 0.32 has them. Imported in the engine process."""

from __future__ import annotations

from typing import Any

import vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method as method  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn


def pack_reloaded_experts() -> None:
    """Copy reloaded experts into the kernel. vLLM packs experts for a CPU only when it first builds their kernel.

    During a layer-wise reload the layer holds tensors of its own, in the layout of the files. Their packed form is
    copied into the tensors that the kernel reads.
    """
    set_up = method.UnquantizedFusedMoEMethod._setup_kernel

    def packed(self: Any, layer: nn.Module, w13: Tensor, w2: Tensor) -> None:
        reloaded = self.moe_kernel is not None
        set_up(self, layer, w13, w2)
        if reloaded:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    method.UnquantizedFusedMoEMethod._setup_kernel = packed


def compute_experts_beside_adapters() -> None:
    """Compute experts without Triton on a CPU. If any layer can have an adapter, vLLM selects Triton for experts, which
    no CPU has: it dies at the first request. Our adapters never reach experts (`BaseModelInfo.adaptable`), so the
    backend of a host without adapters works.
    """
    select = method.select_unquantized_moe_backend

    def selected(moe_config: Any) -> Any:
        moe_config.is_lora_enabled = False
        return select(moe_config=moe_config)

    method.select_unquantized_moe_backend = selected

"""Runs inside the engine process: loads full weights from files, and works around faults of vLLM.

Three faults silently give wrong tokens (vLLM 0.32 on a CPU); each workaround can be switched off by its name:
`tied_head`: after a reload, a tied LM head keeps the old weights, prepacked for oneDNN.
`packed_experts`: after a reload, experts stay as in the files, but their kernel needs them packed.
`lora_mask`: rows without an adapter, beside rows with one, get the adapter of the last slot (index -1).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

_loaded: list[str] = []
_workarounds: set[str] = set()


@dataclass
class FileInit(WeightTransferInitInfo):
    """Files need no connection."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """files: safetensors on this machine that hold the whole model.

    swapped_rows: [tensor name, i, j]: rows i and j of this tensor change places on the way (for the self-test).
    """

    files: list[str]
    swapped_rows: list[Any] = field(default_factory=list[Any])


class FileTransfer(WeightTransferEngine):
    """Loads full weights from safetensors files, by their Hugging Face names, through vLLM's layer-wise reload."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        pass

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
            initialize_layerwise_reload,
        )

        # Layers are imported in the engine process alone: the fork server, which has this module, must touch no GPU.
        from synth.inference.engines.vllm.plugin.gpt_oss import take_copies

        _loaded.clear()
        initialize_layerwise_reload(self.model)
        take_copies(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        self.model.load_weights(_tensors(update_info))

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
            finalize_layerwise_reload,
        )

        from synth.inference.engines.vllm.plugin.gpt_oss import place_sinks

        place_sinks(self.model)
        finalize_layerwise_reload(self.model, self.model_config)
        if "tied_head" in _workarounds:
            _repack_head(self.model)

    def shutdown(self) -> None:
        pass


class WorkerExtension:
    """Methods that `collective_rpc` adds to vLLM's worker."""

    def synth_setup(self, workarounds: list[str]) -> int:
        """Apply workarounds, before the first request. Returns the process id."""
        _workarounds.update(workarounds)
        if current_platform.is_cpu():
            if "lora_mask" in _workarounds:
                _mask_rows_without_adapter()
            if "packed_experts" in _workarounds:
                from synth.inference.engines.vllm.plugin.cpu_experts import pack_reloaded_experts

                pack_reloaded_experts()
        return os.getpid()

    def synth_loaded(self) -> list[str]:
        """Return the names of the tensors that the last update handed to the loader."""
        return list(_loaded)


def _tensors(update: FileUpdate) -> Iterator[tuple[str, Tensor]]:
    for path in update.files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                if update.swapped_rows and name == update.swapped_rows[0]:
                    _, i, j = update.swapped_rows
                    tensor[[i, j]] = tensor[[j, i]]
                _loaded.append(name)
                yield name, tensor


def _repack_head(model: nn.Module) -> None:
    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
        ParallelLMHead,
    )

    module: Any
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def _mask_rows_without_adapter() -> None:
    """Upstream: vLLM pull requests 48421 and 49656."""
    import vllm.lora.ops.torch_ops as package  # pyright: ignore[reportMissingImports]
    import vllm.lora.ops.torch_ops.lora_ops as ops  # pyright: ignore[reportMissingImports]

    shrink = ops.bgmv_shrink

    def masked(inputs: Tensor, weights: Tensor, output: Tensor, index: Tensor, scaling: float = 1.0) -> None:
        shrink(inputs, weights, output, index, scaling)
        output[: index.shape[0]][index < 0] = 0

    ops.bgmv_shrink = package.bgmv_shrink = masked
    imported = sys.modules.get("vllm.lora.punica_wrapper.punica_cpu")
    if imported is not None:
        imported.bgmv_shrink = masked  # type: ignore[attr-defined]

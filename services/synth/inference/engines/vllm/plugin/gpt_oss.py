"""New weights for gpt-oss. Imported in the engine process.

A layer-wise reload puts parameters without memory in place of a model's own, and waits for their loaders to be called.
gpt-oss copies experts and sinks into its parameters, past their loaders (vLLM 0.32): the new ones would be lost, and
the old ones served. This module passes the experts of a layer to a loader, and gives the sinks memory.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts  # pyright: ignore[reportMissingImports]
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (  # pyright: ignore[reportMissingImports]
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.model_loader.reload import layerwise  # pyright: ignore[reportMissingImports]
from vllm.model_executor.model_loader.reload.meta import materialize_layer  # pyright: ignore[reportMissingImports]

_MODEL = "GptOssForCausalLM"


def take_copies(model: nn.Module) -> None:
    """Take the copied experts and sinks, after the begin of a layer-wise reload; does nothing to another model."""
    if type(model).__name__ != _MODEL:
        return
    module: Any
    for module in model.modules():
        # In 4 bits they have loaders that are called.
        if isinstance(module, RoutedExperts) and isinstance(module.quant_method, UnquantizedFusedMoEMethod):
            parameters: dict[str, Any] = dict(module.named_parameters(recurse=False))
            for parameter in parameters.values():
                # The original loader takes one expert, from a file that stores experts apart.
                parameter.weight_loader = _load
            layerwise._wrap_parameters_weight_loader(module)
            for parameter in parameters.values():
                parameter.copy_ = _loading(parameter)
        elif _has_sinks(module):
            materialize_layer(module, layerwise.get_layerwise_info(module))


def place_sinks(model: nn.Module) -> None:
    """Put the sinks that were copied into the model in place, before the end of a layer-wise reload."""
    if type(model).__name__ == _MODEL:
        for module in model.modules():
            if _has_sinks(module):
                layerwise._layerwise_process(module, layerwise.get_layerwise_info(module))


def _load(param: Any, loaded_weight: Tensor) -> None:
    # The parameter's successor inherits its attributes, and is written by `copy_`.
    vars(param).pop("copy_", None)
    param.data.copy_(loaded_weight)


def _loading(parameter: Any) -> Any:
    def copy(weight: Tensor) -> Any:
        parameter.weight_loader(parameter, weight)
        return parameter

    return copy


def _has_sinks(module: nn.Module) -> bool:
    return "sinks" in dict(module.named_parameters(recurse=False))

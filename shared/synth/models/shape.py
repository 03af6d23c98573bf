"""The shape of a model: the sizes of its config, and the tensors that follow from them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from synth.models.table import LORA_TARGETS, MM_PROJECTOR, PROJECTOR
from synth.models.vision_shape import VisionShape


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes as in its config.json, of the families of docs/models.md.

    intermediate: of the MLP, in an MoE of one expert. tied: whether the LM head is the embedding. experts: of a layer,
    all of which are in memory; 0 in a dense model. active_experts: experts that each token goes to. vision: of a vision
    model. head_norms: whether queries and keys are normalised, each head by itself or all together. layer_norms: of the
    width of the model, in a layer. qkv_bias, output_bias, mlp_bias: of the linear layers of a layer. expert_bias: of
    the router and of each expert. sinks: whether each head has one. fused: whether queries, keys and values are one
    linear layer, and gate and up another one. gelu: whether the MLP's activation is Gemma's. windowed_layers: layers
    that see only the last `window` tokens; they hold only the keys of those.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    experts: int = 0
    active_experts: int = 0
    vision: VisionShape | None = None
    head_norms: Literal["none", "each", "together"] = "none"
    layer_norms: int = 2
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    fused: bool = False
    gelu: bool = False
    windowed_layers: int = 0
    window: int = 0

    @property
    def queries(self) -> int:
        """The width of a layer's queries, all heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of a layer's keys, and of its values, all heads together."""
        return self.kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The linear modules of one layer: (in, out) features of each, by its name in the layer.

        Experts are not among them: their weights are one tensor a layer, which adapters and 4 bits do not change.
        """
        output = {"self_attn.o_proj": (self.queries, self.hidden)}
        if self.fused:
            attention = {"self_attn.qkv_proj": (self.hidden, self.queries + 2 * self.keys), **output}
        else:
            attention = {
                "self_attn.q_proj": (self.hidden, self.queries),
                "self_attn.k_proj": (self.hidden, self.keys),
                "self_attn.v_proj": (self.hidden, self.keys),
                **output,
            }
        if self.experts:
            return attention
        gated = (
            {"mlp.gate_up_proj": (self.hidden, 2 * self.intermediate)}
            if self.fused
            else {"mlp.gate_proj": (self.hidden, self.intermediate), "mlp.up_proj": (self.hidden, self.intermediate)}
        )
        return attention | gated | {"mlp.down_proj": (self.intermediate, self.hidden)}

    def layer_tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor of one layer: its name in the layer and its shape."""
        biased = {"self_attn.o_proj": self.output_bias}
        for name, (columns, rows) in self.linears.items():
            yield f"{name}.weight", (rows, columns)
            if biased.get(name, self.mlp_bias if name.startswith("mlp.") else self.qkv_bias):
                yield f"{name}.bias", (rows,)
        if self.head_norms != "none":
            each = self.head_norms == "each"
            yield "self_attn.q_norm.weight", (self.head_dim if each else self.queries,)
            yield "self_attn.k_norm.weight", (self.head_dim if each else self.keys,)
        if self.sinks:
            yield "self_attn.sinks", (self.heads,)
        for i in range(self.layer_norms):
            yield f"norm.{i}.weight", (self.hidden,)
        if not self.experts:
            return
        yield "mlp.router.weight", (self.experts, self.hidden)
        yield "mlp.experts.gate_up_proj", (self.experts, 2 * self.intermediate, self.hidden)
        yield "mlp.experts.down_proj", (self.experts, self.hidden, self.intermediate)
        if self.expert_bias:
            yield "mlp.router.bias", (self.experts,)
            yield "mlp.experts.gate_up_proj_bias", (self.experts, 2 * self.intermediate)
            yield "mlp.experts.down_proj_bias", (self.experts, self.hidden)

    def root_tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the tensors of the language model outside its layers."""
        yield "embed_tokens.weight", (self.vocabulary, self.hidden)
        yield "norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, self.hidden)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Yield every kind of tensor: a name, its shape, and how many there are. A tied head is the embedding."""
        for name, shape in self.layer_tensors():
            yield f"layers.0.{name}", shape, self.layers
        for name, shape in self.root_tensors():
            yield name, shape, 1
        if self.vision is not None:
            yield from self.vision.tensors()

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear modules of all layers of the language model, without the LM head."""
        return self.layers * sum(rows * columns for rows, columns in self.linears.values())

    @property
    def router_parameters(self) -> int:
        """Weights of the routers of all layers."""
        return self.layers * self.experts * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of the experts of all layers."""
        return self.layers * self.experts * 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights, a tied head counted once."""
        return sum(count * math.prod(shape) for _, shape, count in self.tensors())

    @property
    def quantized_parameters(self) -> int:
        """Weights that QLoRA has in 4 bits: of every linear module but the LM head."""
        return sum(count * rows * columns for _, (rows, columns), count in self.modules())

    def modules(self) -> Iterator[tuple[str, tuple[int, int], int]]:
        """Yield every kind of linear module: the first one's name, its (in, out) features, and how many there are."""
        layers = "model.layers.0." if self.vision is None else "model.language_model.layers.0."
        for name, features in self.linears.items():
            yield layers + name, features, self.layers
        if self.vision is None:
            return
        for name, features in self.vision.tower_linears.items():
            yield f"model.visual.blocks.0.{name}", features, self.vision.depth
        for name, features in self.vision.projector_linears.items():
            yield f"model.visual.merger.{name}", features, 1
            yield f"model.visual.deepstack_merger_list.0.{name}", features, self.vision.deepstack

    def adapted(self, targets: str | list[str]) -> Iterator[tuple[str, tuple[int, int], int]]:
        """Yield the `modules` that a LoRA on `targets` adapts: "all-linear", a regex, or names, as in a job file."""
        if targets == "all-linear" and self.vision is not None:
            targets = LORA_TARGETS["qwen3-vl"]
        return (module for module in self.modules() if _is_target(module[0], targets))

    def adapter_tensors(
        self, rank: int, targets: str | list[str] = "all-linear"
    ) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the tensors of a LoRA adapter of this rank on `targets`: a shape, and how many there are."""
        for _, (columns, rows), count in self.adapted(targets):
            yield (rank, columns), count
            yield (rows, rank), count

    def adapter_parameters(self, rank: int, targets: str | list[str] = "all-linear") -> int:
        """Return how many weights a LoRA adapter of this rank has on `targets`, as in a job file."""
        return sum(count * math.prod(shape) for shape, count in self.adapter_tensors(rank, targets))


def _is_target(name: str, targets: str | list[str]) -> bool:
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    if MM_PROJECTOR in targets and re.fullmatch(PROJECTOR, name):
        return True
    return any(name == target or name.endswith(f".{target}") for target in targets)

"""The shape of a Qwen3, text or vision, dense or MoE: what its config says of its size, and the tensors that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from synth.models.table import LORA_TARGETS, MM_PROJECTOR, PROJECTOR
from synth.models.vision_shape import VisionConfig, VisionShape, hosted_vision


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A Qwen3: sizes as in its config.json.

    intermediate: of the MLP, in an MoE of one expert. tied: whether the LM head is the embedding. experts: of a layer,
    all of which are in memory; 0 in a dense model. active_experts: of them for each token. vision: of a model that
    sees.
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

        Experts are none: the weights of a layer's are one tensor, which an adapter or 4 bits leave alone.
        """
        attention = {
            "self_attn.q_proj": (self.hidden, self.queries),
            "self_attn.k_proj": (self.hidden, self.keys),
            "self_attn.v_proj": (self.hidden, self.keys),
            "self_attn.o_proj": (self.queries, self.hidden),
        }
        if self.experts:
            return attention
        return attention | {
            "mlp.gate_proj": (self.hidden, self.intermediate),
            "mlp.up_proj": (self.hidden, self.intermediate),
            "mlp.down_proj": (self.intermediate, self.hidden),
        }

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
    def embeddings(self) -> int:
        """Weights of the embedding, and of the LM head where that is another tensor."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All weights, a tied head counted once."""
        norms = self.layers * (2 * self.hidden + 2 * self.head_dim) + self.hidden
        language = self.linear_parameters + self.router_parameters + self.expert_parameters + self.embeddings + norms
        return language + (self.vision.parameters if self.vision is not None else 0)

    @property
    def quantized_parameters(self) -> int:
        """Weights that QLoRA has in 4 bits: of every linear module but the LM head."""
        return sum(count * rows * columns for _, (rows, columns), count in self.modules())

    def modules(self) -> Iterator[tuple[str, tuple[int, int], int]]:
        """Every kind of linear module: the name of the first one, its (in, out) features, and how many there are."""
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
        """Those of `modules` that a LoRA on `targets` adapts: "all-linear", a regex, or names, as in a job file."""
        if targets == "all-linear" and self.vision is not None:
            targets = LORA_TARGETS["qwen3-vl"]
        return (module for module in self.modules() if _is_target(module[0], targets))

    def adapter_parameters(self, rank: int, targets: str | list[str] = "all-linear") -> int:
        """Weights of a LoRA adapter of this rank on `targets`, as in a job file."""
        return sum(count * rank * sum(features) for _, features, count in self.adapted(targets))


def _dense(layers: int, hidden: int, intermediate: int, heads: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocabulary=151936,
        tied=tied,
    )


def _moe(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, experts: int = 128) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        vocabulary=151936,
        tied=False,
        experts=experts,
        active_experts=8,
    )


#: Of the hosted bases, by the size in their id, from their config.json on the hub.
_QWEN3 = {
    "0.6B": _dense(28, 1024, 3072, 16, tied=True),
    "1.7B": _dense(28, 2048, 6144, 16, tied=True),
    "4B": _dense(36, 2560, 9728, 32, tied=True),
    "8B": _dense(36, 4096, 12288, 32, tied=False),
    "14B": _dense(40, 5120, 17408, 40, tied=False),
    "32B": _dense(64, 5120, 25600, 64, tied=False),
    "30B-A3B": _moe(48, 2048, 768, 32, 4),
    "235B-A22B": _moe(94, 4096, 1536, 64, 4),
    "480B-A35B": _moe(62, 6144, 2560, 96, 8, experts=160),
}
#: Of the hosted vision bases: the language model is that of a text base.
_QWEN3_VL = {"2B": "1.7B", "4B": "4B", "8B": "8B", "32B": "32B", "30B-A3B": "30B-A3B", "235B-A22B": "235B-A22B"}
_SMALL_TOWER = ("2B", "4B")
_HOSTED = re.compile(
    r"Qwen/Qwen3-(?P<kind>VL-|Coder-)?(?P<size>\d+(?:\.\d+)?B(?:-A\d+B)?)"
    r"(?:-(?:Base|(?:(?:Instruct|Thinking)(?:-2507)?|2507)(?:-FP8)?))?"
)


def known_shape(model_id: str) -> ModelShape | None:
    """The shape of a hosted base by its id; None for any other id."""
    found = _HOSTED.fullmatch(model_id)
    if found is None:
        return None
    size = found["size"]
    if found["kind"] != "VL-":
        return _QWEN3.get(size)
    if size not in _QWEN3_VL:
        return None
    language = _QWEN3[_QWEN3_VL[size]]
    tower = hosted_vision(language.hidden, small=size in _SMALL_TOWER)
    return msgspec.structs.replace(language, vision=tower)


class _Config(msgspec.Struct, kw_only=True):
    """The fields of a config.json, or of its `text_config`, that say a language model's size."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int = 0
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    moe_intermediate_size: int = 0
    num_experts: int = 0
    num_local_experts: int = 0  # as transformers 5 writes it
    num_experts_per_tok: int = 0
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


class _SeeingConfig(msgspec.Struct, kw_only=True):
    """The fields of a vision model's config.json that say its size."""

    text_config: _Config
    vision_config: VisionConfig
    tie_word_embeddings: bool = False


class _Kind(msgspec.Struct):
    model_type: str


def read_shape(model_dir: Path) -> ModelShape | None:
    """The shape that a model folder's config.json says.

    None for another architecture than those of Qwen3, for an MoE some of whose layers are dense, and for a file that
    does not say its size.
    """
    try:
        text = (model_dir / "config.json").read_bytes()
        kind = msgspec.json.decode(text, type=_Kind).model_type
        if kind in ("qwen3_vl", "qwen3_vl_moe"):
            found = msgspec.json.decode(text, type=_SeeingConfig)
            shape = _language(found.text_config, moe=kind == "qwen3_vl_moe", tied=found.tie_word_embeddings)
            return None if shape is None else msgspec.structs.replace(shape, vision=found.vision_config.shape())
        if kind in ("qwen3", "qwen3_moe"):
            language = msgspec.json.decode(text, type=_Config)
            return _language(language, moe=kind == "qwen3_moe", tied=language.tie_word_embeddings)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None


def _language(found: _Config, *, moe: bool, tied: bool) -> ModelShape | None:
    if moe and (found.mlp_only_layers or found.decoder_sparse_step != 1):
        return None
    return ModelShape(
        layers=found.num_hidden_layers,
        hidden=found.hidden_size,
        intermediate=found.moe_intermediate_size if moe else found.intermediate_size,
        heads=found.num_attention_heads,
        kv_heads=found.num_key_value_heads,
        head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
        vocabulary=found.vocab_size,
        tied=tied,
        experts=(found.num_experts or found.num_local_experts) if moe else 0,
        active_experts=found.num_experts_per_tok if moe else 0,
    )


def _is_target(name: str, targets: str | list[str]) -> bool:
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    if MM_PROJECTOR in targets and re.fullmatch(PROJECTOR, name):
        return True
    return any(name == target or name.endswith(f".{target}") for target in targets)

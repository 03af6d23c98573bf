"""Read the shape of a model from its folder's config.json, for every family of docs/models.md.

Missing fields have the defaults of transformers: files of the hub leave out the defaults of their own family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from synth.models.shape import ModelShape
from synth.models.vision_shape import VisionShape


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """The common properties of all models of a `model_type`; the fields as in `ModelShape`.

    tied, head_dim: if the file does not set them. every: one layer in so many sees everything, the last of them, if the
    file has windows and does not list their layers; 0: none.
    """

    head_norms: Literal["none", "each", "together"] = "none"
    layer_norms: int = 2
    qkv_bias: bool = False
    sinks: bool = False
    fused: bool = False
    gelu: bool = False
    expert_bias: bool = False
    experts: bool = False
    tied: bool = False
    head_dim: int | None = None
    biases: bool = True
    every: int = 0


_FAMILIES = {
    "qwen2": _Family(qkv_bias=True, biases=False),
    "qwen3": _Family(head_norms="each"),
    "qwen3_moe": _Family(head_norms="each", experts=True),
    "llama": _Family(),
    "mistral": _Family(biases=False),
    "gemma3_text": _Family(head_norms="each", layer_norms=4, gelu=True, tied=True, head_dim=256, every=6),
    "phi3": _Family(fused=True, biases=False),
    "olmo2": _Family(head_norms="together"),
    "olmo3": _Family(head_norms="together", every=4),
    "gpt_oss": _Family(experts=True, expert_bias=True, sinks=True, qkv_bias=True, every=2),
}
#: The language models of vision models.
_SEEING = {"qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}


class _Config(msgspec.Struct, kw_only=True):
    """The fields of a config.json, or of its `text_config`, that say a language model's size."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int = 0
    num_attention_heads: int
    num_key_value_heads: int | None = None
    vocab_size: int
    head_dim: int | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool = False
    moe_intermediate_size: int = 0
    num_experts: int = 0
    num_local_experts: int = 0  # as transformers 5 writes it
    num_experts_per_tok: int = 0
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 0
    sliding_window_pattern: int | None = None
    layer_types: list[str] | None = None


class _SeeingConfig(msgspec.Struct, kw_only=True):
    """The fields of a vision model's config.json that say its size."""

    text_config: _Config
    vision_config: VisionShape
    tie_word_embeddings: bool = False


class _Kind(msgspec.Struct):
    model_type: str


def read_shape(model_dir: Path) -> ModelShape | None:
    """Return the shape of a model folder's config.json.

    None for a family that is not in docs/models.md, for an MoE with some dense layers, and for a file that does not
    give its size.
    """
    try:
        text = (model_dir / "config.json").read_bytes()
        kind = msgspec.json.decode(text, type=_Kind).model_type
        if kind in _SEEING:
            seeing = msgspec.json.decode(text, type=_SeeingConfig)
            shape = _language(seeing.text_config, _SEEING[kind], tied=seeing.tie_word_embeddings)
            return None if shape is None else msgspec.structs.replace(shape, vision=seeing.vision_config)
        if kind in _FAMILIES:
            language = msgspec.json.decode(text, type=_Config)
            tied = language.tie_word_embeddings
            return _language(language, kind, tied=_FAMILIES[kind].tied if tied is None else tied)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None


def _language(found: _Config, kind: str, *, tied: bool) -> ModelShape | None:
    family = _FAMILIES[kind]
    if family.experts and (found.mlp_only_layers or found.decoder_sparse_step != 1):
        return None
    biased = family.biases and bool(found.attention_bias if found.attention_bias is not None else family.expert_bias)
    windowed = _windowed_layers(found, kind)
    intermediate = (found.moe_intermediate_size or found.intermediate_size) if family.experts else 0
    features: dict[str, Any] = {
        name: getattr(family, name) for name in ("head_norms", "layer_norms", "sinks", "fused", "gelu", "expert_bias")
    }
    return ModelShape(
        layers=found.num_hidden_layers,
        hidden=found.hidden_size,
        intermediate=intermediate or found.intermediate_size,
        heads=found.num_attention_heads,
        kv_heads=found.num_key_value_heads or found.num_attention_heads,
        head_dim=found.head_dim or family.head_dim or found.hidden_size // found.num_attention_heads,
        vocabulary=found.vocab_size,
        tied=tied,
        experts=(found.num_experts or found.num_local_experts) if family.experts else 0,
        active_experts=found.num_experts_per_tok if family.experts else 0,
        qkv_bias=(family.qkv_bias and not family.biases) or biased,
        output_bias=biased,
        mlp_bias=found.mlp_bias and kind == "llama",
        windowed_layers=windowed,
        window=found.sliding_window or 0 if windowed else 0,
        **features,
    )


def _windowed_layers(found: _Config, kind: str) -> int:
    """Return how many layers see the last `sliding_window` tokens alone."""
    if not found.sliding_window:
        return 0
    if found.layer_types is not None:
        return found.layer_types.count("sliding_attention")
    if kind in ("qwen2", "qwen3", "qwen3_moe"):
        first = found.max_window_layers if found.use_sliding_window else found.num_hidden_layers
        return max(0, found.num_hidden_layers - first)
    every = found.sliding_window_pattern or _FAMILIES[kind].every
    if every:
        return found.num_hidden_layers - found.num_hidden_layers // every
    return found.num_hidden_layers if kind in ("mistral", "phi3") else 0

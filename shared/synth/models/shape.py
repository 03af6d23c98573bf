"""The shape of a Qwen3 text model: what its config.json says of its size, and the tensors that follow from it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A dense Qwen3: sizes as in its config.json.

    tied: whether the LM head is the embedding.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

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
        """The linear modules of one layer: (in, out) features of each, by its name in the layer."""
        return {
            "self_attn.q_proj": (self.hidden, self.queries),
            "self_attn.k_proj": (self.hidden, self.keys),
            "self_attn.v_proj": (self.hidden, self.keys),
            "self_attn.o_proj": (self.queries, self.hidden),
            "mlp.gate_proj": (self.hidden, self.intermediate),
            "mlp.up_proj": (self.hidden, self.intermediate),
            "mlp.down_proj": (self.intermediate, self.hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear modules of all layers, without the LM head."""
        return self.layers * sum(rows * columns for rows, columns in self.linears.values())

    @property
    def embeddings(self) -> int:
        """Weights of the embedding, and of the LM head where that is another tensor."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All weights, a tied head counted once."""
        norms = self.layers * (2 * self.hidden + 2 * self.head_dim) + self.hidden
        return self.linear_parameters + self.embeddings + norms

    def adapter_parameters(self, rank: int, targets: str | list[str] = "all-linear") -> int:
        """Weights of a LoRA adapter of this rank on `targets`: "all-linear", a regex, or names, as in a job file."""
        names = [name for name in self.linears if _is_target(name, targets)]
        return self.layers * rank * sum(sum(self.linears[name]) for name in names)


def _qwen3(layers: int, hidden: int, intermediate: int, heads: int, *, tied: bool) -> ModelShape:
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


#: Of the dense hosted bases, by the size in their id, from their config.json on the hub.
_QWEN3 = {
    "0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "14B": _qwen3(40, 5120, 17408, 40, tied=False),
    "32B": _qwen3(64, 5120, 25600, 64, tied=False),
}
_DENSE = re.compile(r"Qwen/Qwen3-(\d+(?:\.\d+)?B)(?:-(?:Base|(?:Instruct-|Thinking-)?2507(?:-FP8)?))?")


def known_shape(model_id: str) -> ModelShape | None:
    """The shape of a dense hosted base by its id; None for any other id."""
    found = _DENSE.fullmatch(model_id)
    return _QWEN3.get(found[1]) if found else None


class _Config(msgspec.Struct, kw_only=True):
    """The fields of a config.json that say a model's size."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int | None = None
    tie_word_embeddings: bool = False


def read_shape(model_dir: Path) -> ModelShape | None:
    """The shape that a model folder's config.json says.

    None for another architecture than a dense Qwen3's, and for a file that does not say its size.
    """
    try:
        found = msgspec.json.decode((model_dir / "config.json").read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if found.model_type != "qwen3":
        return None
    return ModelShape(
        layers=found.num_hidden_layers,
        hidden=found.hidden_size,
        intermediate=found.intermediate_size,
        heads=found.num_attention_heads,
        kv_heads=found.num_key_value_heads,
        head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
        vocabulary=found.vocab_size,
        tied=found.tie_word_embeddings,
    )


def _is_target(name: str, targets: str | list[str]) -> bool:
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        return re.fullmatch(targets, f"model.layers.0.{name}") is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)

"""The models that are measured, how much goes through them, and what that costs in FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import Qwen3Config


@dataclass(frozen=True)
class Cost:
    """The cost of a step in forwards' FLOPs, for the weights' matmuls and for attention's."""

    weights: int
    attention: int


FULL = Cost(weights=3, attention=3)
LORA = Cost(weights=2, attention=3)
FORWARD = Cost(weights=1, attention=1)


@dataclass(frozen=True)
class Shape:
    """A Qwen3 by its sizes."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    def config(self, *, context: int) -> Qwen3Config:
        """context: the longest sequence."""
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate,
            max_position_embeddings=context,
            tie_word_embeddings=True,
        )

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the embedding, which is the head too, the blocks and the norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 2 * self.head_dim
        block = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * block + self.hidden

    def flops(self, cost: Cost, *, context: float) -> float:
        """FLOPs of one token. context: the tokens that it attends to, on average."""
        attention = 4 * context * self.heads * self.head_dim * self.layers
        return cost.weights * 2 * self.parameters + cost.attention * attention


@dataclass(frozen=True)
class Load:
    """The tokens of one step. length: tokens a sequence, of which the first half is prompt."""

    length: int
    sequences: int
    micro_batch_tokens: int

    @property
    def tokens(self) -> int:
        return self.length * self.sequences


QWEN3_06B = Shape("Qwen3-0.6B", 151_936, 1024, 28, 16, 8, 128, 3072)
QWEN3_4B = Shape("Qwen3-4B", 151_936, 2560, 36, 32, 8, 128, 9728)
TINY = Shape("tiny", 320, 64, 2, 4, 2, 16, 192)
TINY_LOAD = Load(64, 8, 256)

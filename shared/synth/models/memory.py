"""The memory of an engine on a GPU: weights, the logits of a step, adapters, and the KV cache in the rest."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.errors import Permanent
from synth.models.shape import ModelShape

GIB = 1 << 30

#: Bytes of one number.
WIDTHS: dict[Literal["fp32", "fp16", "bf16"], int] = {"fp32": 4, "fp16": 2, "bf16": 2}

#: Of one logit of a step: float32, and as much again twice for its softmax and its sorted copy.
_LOGIT_BYTES = 12


def in_words(size: int) -> str:
    """Format bytes as `7.5 GiB`, `63.0 MiB` or `144 KiB`."""
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.0f} KiB"


class EngineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one engine holds. kv_tokens: how many tokens of all its requests together the cache has room for."""

    weights: int
    logits: int
    kv_cache: int
    kv_tokens: int


def kv_bytes_per_token(shape: ModelShape, dtype: Literal["fp32", "fp16", "bf16"] = "bf16") -> int:
    """Return the bytes of a token's keys and values: 2 x layers x KV heads x head width x bytes of a number.

    Source: "Efficient Memory Management for LLM Serving with PagedAttention" (arXiv 2309.06180), section 3.
    """
    return 2 * shape.layers * shape.keys * WIDTHS[dtype]


def kv_bytes(shape: ModelShape, tokens: int, dtype: Literal["fp32", "fp16", "bf16"] = "bf16") -> int:
    """Return the bytes of a request's keys and values; a layer with a window holds at most the window's.

    The embedded engine holds all of them in every layer.
    """
    full = shape.layers - shape.windowed_layers
    positions = full * tokens + shape.windowed_layers * min(tokens, shape.window)
    return 2 * shape.keys * WIDTHS[dtype] * positions


def gpu_kv_bytes(free: int, *, weights: int, vocabulary: int, max_num_seqs: int, kv_share: float) -> int:
    """Return the bytes of an engine's KV cache on a GPU: `kv_share` of the rest beside the weights and a step's logits.

    free: bytes, before the weights are loaded; weights: bytes that they will take (0 if they are loaded already).
    Raises `Permanent` if nothing is left.
    """
    logits = _LOGIT_BYTES * vocabulary * max_num_seqs
    left = free - weights - logits
    if left <= 0:
        raise Permanent(
            f"{free / GIB:.1f} GiB of the GPU are free, and the model takes {weights / GIB:.1f} GiB and its logits "
            f"{logits / GIB:.1f} GiB; end other programs on it, lower SYNTH_MAX_ROWS, or choose a smaller model"
        )
    return int(left * kv_share)


def engine_memory(
    shape: ModelShape, free: int, *, kv_share: float, max_num_seqs: int, dtype: Literal["fp32", "fp16", "bf16"] = "bf16"
) -> EngineMemory:
    """Return the memory of the first engine on a GPU with `free` bytes, as the engine computes it when it starts.

    Raises `Permanent` as `gpu_kv_bytes` does. Adapters, CUDA's own memory and its graphs use the rest beside
    `kv_share`.
    """
    weights = shape.parameters * WIDTHS[dtype]
    kv_cache = gpu_kv_bytes(
        free, weights=weights, vocabulary=shape.vocabulary, max_num_seqs=max_num_seqs, kv_share=kv_share
    )
    return EngineMemory(
        weights=weights,
        logits=_LOGIT_BYTES * shape.vocabulary * max_num_seqs,
        kv_cache=kv_cache,
        kv_tokens=kv_cache // kv_bytes_per_token(shape, dtype),
    )

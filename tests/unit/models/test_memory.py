"""How much of a GPU one engine takes, by arithmetic, and as the embedded engine's cache has it."""

from __future__ import annotations

import pytest
import torch

from synth.errors import Permanent
from synth.inference.engines.kv_cache import SequenceCache
from synth.models.hosted_shapes import known_shape
from synth.models.memory import GIB, engine_memory, gpu_kv_bytes, kv_bytes_per_token


def test_an_engine_leaves_room_for_the_next_one() -> None:
    free, kept = 79 * GIB, list[int]()
    weights = 8 * GIB  # Qwen3-4B in bfloat16
    while free > weights + GIB:
        kept.append(gpu_kv_bytes(free, weights=weights, vocabulary=151936, max_num_seqs=256, kv_share=0.5))
        free -= weights + kept[-1]
    assert len(kept) >= 3
    assert kept[0] > 30 * GIB


def test_the_share_is_of_what_weights_and_logits_leave() -> None:
    half, most = (
        gpu_kv_bytes(20 * GIB, weights=8 * GIB, vocabulary=151936, max_num_seqs=256, kv_share=share)
        for share in (0.5, 0.9)
    )
    assert most / half == pytest.approx(1.8)


def test_a_model_that_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(Permanent, match=r"7.0 GiB of the GPU are free, and the model takes 8.0 GiB"):
        gpu_kv_bytes(7 * GIB, weights=8 * GIB, vocabulary=151936, max_num_seqs=256, kv_share=0.5)


def test_the_cache_holds_as_many_tokens_as_the_arithmetic_says() -> None:
    shape = known_shape("Qwen/Qwen3-4B")
    assert shape is not None
    cache = SequenceCache(
        layers=dict.fromkeys(range(2), ((shape.kv_heads, shape.head_dim), (shape.kv_heads, shape.head_dim))),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        budget_bytes=64 << 20,
    )
    cache.reserve(2, 64)
    stored = sum(store.nbytes for store in (*cache._keys.values(), *cache._values.values()))
    per_token_and_layer = kv_bytes_per_token(shape) // shape.layers
    assert stored == cache.capacity * cache.positions * 2 * per_token_and_layer
    assert cache.budget_tokens == (64 << 20) // (2 * per_token_and_layer)


def test_an_engine_of_4b_on_a_card_of_24_gib() -> None:
    shape = known_shape("Qwen/Qwen3-4B")
    assert shape is not None
    found = engine_memory(shape, 24 * GIB, kv_share=0.5, max_num_seqs=256)
    # 36 layers x 2 x 8 heads x 128 x 2 bytes = 144 KiB a token.
    assert kv_bytes_per_token(shape) == 144 << 10
    assert found.weights == 2 * shape.parameters
    assert found.kv_tokens == found.kv_cache // (144 << 10)
    assert found.weights + found.logits + 2 * found.kv_cache == pytest.approx(24 * GIB, abs=2)

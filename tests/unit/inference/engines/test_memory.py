"""How much of a GPU one engine takes."""

from __future__ import annotations

import pytest

from synth.errors import Permanent
from synth.inference.engines.settings import gpu_kv_bytes

GIB = 1 << 30


def test_an_engine_leaves_room_for_the_next_one() -> None:
    free, kept = 79 * GIB, list[int]()
    weights = 8 * GIB  # Qwen3-4B in bfloat16
    while free > weights + GIB:
        kept.append(gpu_kv_bytes(free, weights=weights, vocabulary=151936, max_num_seqs=256))
        free -= weights + kept[-1]
    assert len(kept) >= 3
    assert kept[0] > 30 * GIB


def test_a_model_that_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(Permanent, match=r"7.0 GiB of the GPU are free, and the model takes 8.0 GiB"):
        gpu_kv_bytes(7 * GIB, weights=8 * GIB, vocabulary=151936, max_num_seqs=256)

"""How one engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from synth.errors import Permanent

CPU_KV_BYTES = 1 << 30
"""The KV cache of one engine on a CPU, when its settings name no budget."""

KV_SHARE = 0.5
"""The part of a GPU's free memory that one engine's KV cache takes, when its settings name no budget: there is room for
the next engine then, which takes the same part of what is left."""

Workaround = Literal["tied_head", "lora_mask", "clear_cache"]
WORKAROUNDS: frozenset[Workaround] = frozenset(get_args(Workaround))
"""Names of the workarounds for faults of vLLM 0.32 that silently give wrong tokens (see `engines.vllm`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How one engine runs.

    Of any engine:
    threads: torch threads (more than one only on an idle machine: contended spin-waits make it slower).
    device: "cpu", "cuda:0" …; None: the first GPU if there is one.
    dtype: "fp32", "fp16" or "bf16"; None: float32 on a CPU; on a GPU bfloat16 with vLLM, else as the model is stored.
    kv_budget_bytes: of the KV cache; None: `CPU_KV_BYTES` on a CPU, on a GPU `gpu_kv_bytes`.
    max_num_seqs: requests in one step, each of which costs 12 bytes x vocabulary for its logits.
    seed: of the random stream of requests without a seed of their own; None: from the operating system.

    Of a vLLM host, whose device is the platform that the environment's vLLM was built for:
    sleeps: whether it has to be able to give its memory back (`Engine.sleep`).
    max_adapters: adapters that it holds at once, old versions included.
    max_batch_adapters: adapters in one step, each of which takes memory for the largest rank.
    workarounds: those that are in force.
    """

    threads: int = 1
    device: str | None = None
    dtype: Literal["fp32", "fp16", "bf16"] | None = None
    kv_budget_bytes: int | None = None
    max_num_seqs: int = 256
    seed: int | None = None
    sleeps: bool = False
    max_adapters: int = 32
    max_batch_adapters: int = 8
    workarounds: frozenset[Workaround] = WORKAROUNDS


def gpu_kv_bytes(free: int, *, weights: int, vocabulary: int, max_num_seqs: int) -> int:
    """Bytes for the KV cache of one engine on a GPU: `KV_SHARE` of what is free beside the weights and a step's logits.

    free: bytes, before the weights are loaded; weights: bytes that they will take (0 where they are loaded already).
    Raises `Permanent` where nothing is left.
    """
    left = free - weights - 12 * vocabulary * max_num_seqs
    if left <= 0:
        raise Permanent(
            f"{free / 2**30:.1f} GiB of the GPU are free, and the model takes {weights / 2**30:.1f} GiB and its logits "
            f"{12 * vocabulary * max_num_seqs / 2**30:.1f} GiB; end what else is loaded, lower SYNTH_MAX_ROWS, or "
            "choose a smaller model"
        )
    return int(left * KV_SHARE)

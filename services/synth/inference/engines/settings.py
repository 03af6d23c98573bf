"""How one engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

CPU_KV_BYTES = 1 << 30
"""The KV cache of one engine on a CPU, when its settings name no budget."""

Workaround = Literal["tied_head", "packed_experts", "lora_mask", "clear_cache"]
WORKAROUNDS: frozenset[Workaround] = frozenset(get_args(Workaround))
"""Names of the workarounds for faults of vLLM 0.32 that silently give wrong tokens (see `engines.vllm`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How one engine runs.

    Of any engine:
    threads: torch threads (more than one only on an idle machine: contended spin-waits make it slower).
    device: "cpu", "cuda:0" …; None: the first GPU if there is one.
    dtype: "fp32", "fp16" or "bf16"; None: float32 on a CPU; on a GPU bfloat16 with vLLM, else as the model is stored.
    kv_budget_bytes: of the KV cache; None: `CPU_KV_BYTES` on a CPU, on a GPU `synth.models.memory.gpu_kv_bytes`.
    kv_share: the part of a GPU's free memory, beside weights and logits, that the KV cache takes then; the rest is for
    the next engine, which takes the same part of it.
    max_num_seqs: requests in one step, each of which costs 12 bytes x vocabulary for its logits.
    seed: of the random stream of requests without a seed of their own; None: from the operating system.
    pixel_cache_bytes: of the patches of images in memory: of the next requests, and of the latest ones.

    Of a vLLM host, whose device is the platform that the environment's vLLM was built for:
    sleeps: whether it has to be able to give its memory back (`Engine.sleep`).
    open_pixel_bytes: of the patches of images that its open requests hold; further requests wait.
    max_adapters: adapters that it holds at once, old versions included.
    start_s: how long it may take to start. call_s: how long its process may take to answer a call.
    max_batch_adapters: adapters in one step, each of which takes memory for the largest rank.
    workarounds: the workarounds that are in force.
    """

    threads: int = 1
    device: str | None = None
    dtype: Literal["fp32", "fp16", "bf16"] | None = None
    kv_budget_bytes: int | None = None
    kv_share: float = 0.5
    max_num_seqs: int = 256
    seed: int | None = None
    pixel_cache_bytes: int = 256 << 20
    sleeps: bool = False
    open_pixel_bytes: int = 4 << 30
    max_adapters: int = 32
    max_batch_adapters: int = 8
    start_s: float = 3600.0
    call_s: float = 600.0
    workarounds: frozenset[Workaround] = WORKAROUNDS

"""How one engine runs."""

from __future__ import annotations

from dataclasses import dataclass

CPU_KV_BYTES = 1 << 30
"""The KV cache of one engine on a CPU, when its settings name no budget."""

GPU_MEMORY_FRACTION = 0.6
"""The part of a GPU's memory for one engine, when its settings name no budget (see `EngineSettings`)."""

WORKAROUNDS = frozenset({"tied_head", "lora_mask", "clear_cache"})
"""What the vLLM engine does about faults of vLLM 0.32 that give wrong tokens silently (see `engines.vllm`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How one engine runs.

    Of any engine:
    threads: torch threads (more than one only on an idle machine: contended spin-waits make it slower).
    device: "cpu", "cuda:0" …; None: the first GPU if there is one. kv_budget_bytes: None: 1 GiB on a CPU, 60 % of the
    free memory of a GPU. max_num_seqs: requests in one step; its logits cost 12 bytes x vocabulary a row.
    seed: of the random stream of requests without a seed of their own; None: from the operating system.

    Of a vLLM host (its device is the platform that the environment's vLLM was built for; on a GPU an unset KV budget
    leaves it 60 % of the memory, weights included):
    max_adapters: adapters, old versions included, that it holds at once. max_batch_adapters: those of them in one step;
    each takes memory for the largest rank. workarounds: names of `WORKAROUNDS` that are in force.
    """

    threads: int = 1
    device: str | None = None
    kv_budget_bytes: int | None = None
    max_num_seqs: int = 256
    seed: int | None = None
    max_adapters: int = 32
    max_batch_adapters: int = 8
    workarounds: frozenset[str] = WORKAROUNDS

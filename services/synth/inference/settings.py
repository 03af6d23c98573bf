"""Settings of the inference service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from synth.inference.engines.settings import Workaround
from synth.runtime.settings import ServiceSettings


class InferenceSettings(ServiceSettings):
    """What an inference process needs beside the shared settings."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """What computes: `transformers` is part of this process; `vllm` needs its own environment (`make install-vllm`)."""

    vllm_workarounds: frozenset[Workaround] | None = None
    """Faults of vLLM to work around, as a JSON list of `tied_head`, `lora_mask`, `clear_cache`; unset: all of them."""

    max_lora_rank: int = 64
    """vLLM: the rank that a process has room for; an adapter of a larger one gets a process of its own."""

    max_models: int = 3
    """Models (training policies, evaluated versions, served models) that one process holds at a time."""

    threads: int = 1
    """CPU threads of an engine. One is the default: contended threads spin and are slower."""

    device: str | None = None
    """`cpu`, `cuda:0` …; unset: the first GPU if there is one."""

    kv_budget_bytes: int | None = None
    """Memory for the KV cache of one engine; unset: 1 GiB on a CPU; on a GPU 60 % of what is free, and
    with vLLM 60 % of all of it, weights included."""

    max_rows: int = 256
    """Completions that are sampled together in one step."""

    public_url: str | None = None
    """Where other services and task apps reach this process; unset: its own host and port."""

    load_timeout_s: float = 600.0
    """How long a model may take to load."""

    max_schema_bytes: int = 64 << 10
    """The longest JSON schema that a request may have, in bytes."""

    max_schema_depth: int = Field(default=64, ge=1, le=64)
    """How many levels a JSON schema of a request may be nested; vLLM takes no more than 64."""

    schema_compile_s: float = 5.0
    """CPU seconds that compiling a JSON schema of a request may take."""

    schema_compile_bytes: int = 512 << 20
    """Memory that compiling a JSON schema of a request may take."""

    idle_unload_s: float = 900.0
    """A served model that nobody has asked for during so many seconds gives its memory back."""

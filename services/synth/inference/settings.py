"""Settings of the inference service."""

from __future__ import annotations

from pathlib import Path
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

    turn_file: Path | None = None
    """A file whose OS lock is the turn at a device that trainer and inference of one machine share, the same for both:
    who has not the turn gives the device's memory back. `synthctl up` sets it where there is one GPU. Unset: nothing is
    shared."""

    turn_s: float = 10.0
    """How long requests may be served on while the other waits for its turn."""

    turn_wait_s: float = 1800.0
    """How long a request may wait for the turn before it is answered with an error."""

    engine_dtype: Literal["fp32", "fp16", "bf16"] | None = None
    """What an engine computes in. Unset: on a CPU float32; on a GPU bfloat16 with vLLM, and with the embedded engine
    what the model is stored in."""

    kv_budget_bytes: int | None = None
    """Memory for the KV cache of one engine; unset: 1 GiB on a CPU; on a GPU half of what is free
    beside the model's weights, so that a further engine finds room."""

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

    @property
    def load_wait_s(self) -> float:
        """How long a model may take until it is loaded, with the wait for a shared device."""
        return self.load_timeout_s + (self.turn_wait_s if self.turn_file is not None else 0.0)

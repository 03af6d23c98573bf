"""Settings of the inference service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from synth.images.source import ImageSettings
from synth.inference.engines.settings import Workaround
from synth.outbound.http_guard import GuardSettings
from synth.runtime.settings import ServiceSettings

#: Places that have their uses: one for jobs, and one for users who chat while jobs train, or wait for a trainer.
_FEWEST_SHARED = 2


class InferenceSettings(ServiceSettings, GuardSettings, ImageSettings):
    """The settings of an inference process, beside the shared ones."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """The engine: `transformers` is part of this process; `vllm` needs its own environment (`make install-vllm`)."""

    vllm_workarounds: frozenset[Workaround] | None = None
    """Faults of vLLM to work around, as a JSON list of `tied_head`, `packed_experts`, `lora_mask`,
    `clear_cache`; unset: all of them."""

    max_lora_rank: int = 64
    """vLLM: the rank that a process has room for; an adapter of a larger one gets a process of its own."""

    max_models: int = Field(default=4, ge=1)
    """Models (training policies, served models) that one process holds at a time. With two or more, one place is for
    chats; with three or more, another is a spare place for organisations that hold none, so that no organisation holds
    every place. Jobs share the others by turns of their organisations."""

    threads: int = 1
    """CPU threads of an engine. One is the default: contended threads spin and are slower."""

    device: str | None = None
    """`cpu`, `cuda:0` …; unset: the first GPU if there is one."""

    turn_file: Path | None = None
    """A file whose OS lock is the turn at a device that trainer and inference of one machine share, the same for both:
    the process without the turn frees the device's memory. `synthctl up` sets it if there is one GPU. Unset: nothing is
    shared."""

    turn_s: float = 10.0
    """How long requests may be served on while the other waits for its turn."""

    turn_wait_s: float = 1800.0
    """How long a request may wait for the turn before it is answered with an error."""

    engine_dtype: Literal["fp32", "fp16", "bf16"] | None = None
    """The dtype in which an engine computes. Unset: on a CPU float32; on a GPU bfloat16 with vLLM, and with the
    embedded engine the dtype in which the model is stored."""

    kv_budget_bytes: int | None = None
    """Memory for the KV cache of one engine; unset: 1 GiB on a CPU, on a GPU by `SYNTH_KV_SHARE`."""

    kv_share: float = Field(default=0.5, gt=0, lt=1)
    """The part of a GPU's free memory, beside the weights and the logits of a step, that the KV cache of an engine
    takes; a further engine takes the same part of the rest. More gives longer contexts and larger batches to one
    model; less leaves room for more models."""

    max_rows: int = 256
    """Completions that are sampled together in one step."""

    public_url: str | None = None
    """The address at which other services and task apps reach this process; unset: its own host and port."""

    load_timeout_s: float = Field(default=3600.0, gt=0)
    """How long a model may take to load, the download of its weights included; vLLM's start is within it."""

    engine_call_s: float = Field(default=600.0, gt=0)
    """vLLM: how long its process may take to load new weights or an adapter, to give its memory back or to take it
    again; then it counts as hung. Any engine: how long it may take to end a reply whose time is over."""

    max_adapters: int = Field(default=32, ge=1)
    """vLLM: adapters that a process holds at a time. A replaced version is held until the last request on it has ended,
    so long replies and short steps need more."""

    completion_s: float = Field(default=3600.0, gt=0)
    """How long a completion outside of any rollout may take; a rollout's may take the rest of the job's
    `rollout_timeout_s`."""

    max_request_bytes: int = Field(default=32 << 20, ge=1)
    """The largest request (images travel inside it, a third larger than their files); the gateway has a setting of the
    same name."""

    max_request_values: int = Field(default=200_000, ge=1)
    """The most JSON values in one request: decoding this many takes about 20 ms, in which no other request runs. A
    text is one value, and so is an image. Eight escapes in a text count as a value, and a long number as several."""

    max_prompt_characters: int = Field(default=4 << 20, ge=1)
    """The most characters of text in the messages and tools of one chat, images left out. No other request runs while a
    step of a chat template copies them. A model with a context of more than a million tokens may need more."""

    max_request_image_bytes: int = Field(default=256 << 20, ge=1)
    """All images of one chat together, fetched ones included: they are in memory while it is answered."""

    max_chat_images_per_message: int | None = Field(default=None, ge=0)
    """The most images that a message of a chat shows which belongs to no training job; further ones are left out, and
    the reply's `warnings` say so. Unset: as many as the context holds. A training job has its own
    `max_images_per_message`."""

    pixel_cache_bytes: int = Field(default=256 << 20, ge=0)
    """Memory of an embedded engine for the patches of images: of the next requests, and in the remaining room of the
    latest ones (a vLLM host holds only these), because the next turn of a conversation shows its images
    again. Patches take 24.6 kB an image token; one request's may be more than this."""

    open_pixel_bytes: int = Field(default=4 << 30, ge=0)
    """Bytes of patches of images that the open requests of a vLLM host show; further requests wait. One request's may
    be more than this. They are held twice, by this service and by vLLM's process. In bfloat16 patches take 12.3 kB an
    image token."""

    max_choices: int = Field(default=128, ge=1)
    """The largest `n`: how many replies one request may ask for."""

    default_max_tokens: int | None = Field(default=None, ge=1)
    """The longest reply to a request that sets no limit, in tokens. Unset: with vLLM the rest of the context; with
    the embedded engine, which keeps memory for the whole of it, 1024."""

    recorder_bytes: int = Field(default=1 << 30, ge=1)
    """Memory for the records of open rollouts, and as much again for rollouts that were closed in the last minute.
    Beyond it a rollout's calls are answered with a 503 until others have ended."""

    max_schema_bytes: int = 64 << 10
    """The longest JSON schema that a request may have, in bytes."""

    max_schema_depth: int = Field(default=64, ge=1, le=64)
    """How many levels a JSON schema of a request may be nested; vLLM takes no more than 64."""

    schema_compile_s: float = 5.0
    """CPU seconds that compiling a JSON schema of a request may take."""

    schema_compile_bytes: int = 512 << 20
    """Memory that compiling a JSON schema of a request may take."""

    idle_unload_s: float = 900.0
    """A served model without a request for this many seconds is unloaded."""

    @property
    def spare_models(self) -> int:
        """Places for organisations that hold none."""
        return 1 if self.max_models > _FEWEST_SHARED else 0

    @property
    def job_models(self) -> int:
        """Places for the policies of jobs, beside the spare ones."""
        return max(1, self.max_models - 1 - self.spare_models)

    @property
    def load_wait_s(self) -> float:
        """How long a model may take until it is loaded, with the wait for a shared device."""
        return self.load_timeout_s + (self.turn_wait_s if self.turn_file is not None else 0.0)

"""The factories that load a model's files into an engine; no other module knows which engine is used."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from synth.inference.chat.prompts import ChatFormat
from synth.inference.serving.canary import check_canary
from synth.inference.serving.model_pool import ModelFiles, ServedModel
from synth.inference.serving.vllm_pool import VllmPool
from synth.inference.settings import InferenceSettings
from synth.runtime.startup import collector_off

if TYPE_CHECKING:
    from synth.inference.engines.settings import EngineSettings
    from synth.inference.engines.vllm.host import VllmHost

_import_lock = threading.Lock()


def import_transformers() -> None:
    """Import the modules that the first model will need, which takes seconds; returns when the imports are done.

    Only one thread at a time may do it: transformers loads its submodules lazily, and of two threads one can find a
    module half loaded.
    """
    with _import_lock:
        import transformers.models.auto.modeling_auto
        import transformers.models.auto.tokenization_auto
        import transformers.models.qwen3.modeling_qwen3
        import transformers.models.qwen3_vl.modeling_qwen3_vl  # noqa: F401

        import synth.inference.engines.loading  # noqa: F401


def warm_up(settings: InferenceSettings) -> None:
    """Prepare this process for its first model; takes seconds, and with vLLM a quarter of a minute."""
    with collector_off():
        import_transformers()
    if settings.engine == "vllm":
        from synth.inference.engines.vllm import process

        process.prepare(settings.threads, start_s=settings.load_timeout_s)


def engine_settings(settings: InferenceSettings) -> EngineSettings:
    """Return the settings of an engine of this process."""
    from synth.inference.engines.settings import WORKAROUNDS, EngineSettings

    return EngineSettings(
        threads=settings.threads,
        device=settings.device,
        dtype=settings.engine_dtype,
        kv_budget_bytes=settings.kv_budget_bytes,
        kv_share=settings.kv_share,
        pixel_cache_bytes=settings.pixel_cache_bytes,
        open_pixel_bytes=settings.open_pixel_bytes,
        sleeps=settings.turn_file is not None,
        max_num_seqs=settings.max_rows,
        max_adapters=settings.max_adapters,
        start_s=settings.load_timeout_s,
        call_s=settings.engine_call_s,
        workarounds=WORKAROUNDS if settings.vllm_workarounds is None else settings.vllm_workarounds,
    )


@dataclass(frozen=True)
class TransformersEngineFactory:
    """A factory that loads files into a transformers engine. Raises `Permanent` for a model that it cannot serve."""

    settings: InferenceSettings

    async def __call__(self, files: ModelFiles) -> ServedModel:
        # torch is imported after the process is healthy.
        await asyncio.to_thread(import_transformers)
        from synth.inference.engines.transformers import TransformersEngine

        chat, half_precision = await asyncio.to_thread(_load_chat_format, files), _half_precision(files, self.settings)
        engine = await TransformersEngine.load(
            files.model_dir, adapter=files.adapter, version=0, settings=engine_settings(self.settings)
        )
        return await _load_published_weights(ServedModel(engine, chat, half_precision=half_precision), files)


@dataclass(frozen=True)
class VllmEngineFactory:
    """A factory that loads files as a policy on a vLLM host."""

    settings: InferenceSettings
    vllm_pool: VllmPool[VllmHost]

    async def __call__(self, files: ModelFiles) -> ServedModel:
        # torch and vLLM are imported after the process is healthy.
        await asyncio.to_thread(warm_up, self.settings)
        chat, half_precision = await asyncio.to_thread(_load_chat_format, files), _half_precision(files, self.settings)
        rank = files.lora.r if files.lora is not None else 0
        lease = await self.vllm_pool.acquire(files.model_dir, rank=None if files.swaps_full_weights else rank)
        try:
            from synth.inference.engines.vllm.engine import VllmEngine

            engine = await VllmEngine.load(lease.host, adapter=files.adapter, version=0)
        except BaseException:
            await lease.release()
            raise
        loaded = ServedModel(engine, chat, half_precision=half_precision, release_host=lease.release)
        return await _load_published_weights(loaded, files)


def build_vllm_pool(settings: InferenceSettings) -> VllmPool[VllmHost]:
    """Create the pool of vLLM hosts of this process, which is empty at first."""

    async def start(model_dir: Path, rank: int | None) -> VllmHost:
        from synth.inference.engines.vllm.host import VllmHost

        return await VllmHost.start(model_dir, engine_settings(settings), max_lora_rank=rank)

    return VllmPool(start, max_rank=settings.max_lora_rank)


async def _load_published_weights(loaded: ServedModel, files: ModelFiles) -> ServedModel:
    """Load the published weights of a policy, if any, and check them with their canary; returns the policy."""
    if files.weights is None:
        return loaded
    try:
        await loaded.engine.update_weights(files.weights, files.version)
        if files.canary is not None:
            await check_canary(loaded.engine, files.canary, half_precision=loaded.half_precision)
    except BaseException:
        await loaded.close()
        raise
    finally:
        if files.weights_are_copy:
            files.weights.unlink()
    return loaded


def _load_chat_format(files: ModelFiles) -> ChatFormat:
    return ChatFormat.load(files.model_dir)


def _half_precision(files: ModelFiles, settings: InferenceSettings) -> bool:
    """Return whether an engine computes in 16 bits.

    The setting decides. Without it, vLLM always does on a GPU, and transformers if the model is stored in 16 bits.
    """
    import torch

    if settings.engine_dtype is not None:
        return settings.engine_dtype != "fp32"

    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    stored = json.loads((files.model_dir / "config.json").read_text())
    # The configuration of a vision model has the dtype in the part of its language model.
    parts = (stored, stored.get("text_config") or {})
    named = [part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key) is not None]
    full = not named or named[0] == "float32"
    return not device.startswith("cpu") and (settings.engine == "vllm" or not full)

"""Starts vLLM over a model directory, with the settings of an engine."""

from __future__ import annotations

import itertools
import math
import secrets
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from synth.errors import Permanent
from synth.inference.engines.settings import CPU_KV_BYTES, EngineSettings
from synth.inference.engines.vllm import metrics, process
from synth.inference.engines.vllm.base_model import BaseModelInfo
from synth.inference.engines.vllm.plugin.register import FILE_BACKEND
from synth.models.memory import gpu_kv_bytes

# Prompts share whole blocks. vLLM's default on a CPU, 128 tokens, is longer than many prompts.
_CPU_BLOCK_SIZE = 32
# With a KV budget, which there always is, only the fraction of the memory that vLLM wants to find free at its start.
_MEMORY_FRACTION = 0.01
# vLLM's own default: how many images a prompt may show is for its length to say.
_ANY_NUMBER = 999
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_hosts = itertools.count(1)


def launch(model_dir: Path, model: BaseModelInfo, settings: EngineSettings, rank: int | None) -> Any:
    """Start vLLM, and block until its process is ready. Its registry and stats become attributes of it."""
    process.prepare(settings.threads, start_s=settings.start_s)
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

    from synth.inference.engines.vllm.plugin import logits

    cpu = process.on_cpu()
    if cpu:
        _check_heads(model_dir)
    config = AsyncEngineArgs(
        logits_processors=logits.PATHS, **engine_arguments(model_dir, model, settings, rank, cpu=cpu)
    ).create_engine_config()
    registry, stats = CollectorRegistry(), metrics.HostStats()
    with process.forkserver_context():
        llm = AsyncLLM.from_vllm_config(config, stat_loggers=[metrics.make_stat_logger(registry, stats)])
    llm.synth_registry, llm.synth_stats = registry, stats
    return llm


def engine_arguments(
    model_dir: Path, model: BaseModelInfo, settings: EngineSettings, rank: int | None, *, cpu: bool
) -> dict[str, Any]:
    """Return the arguments of vLLM's engine, without its logits processors. cpu: whether its build is for CPUs."""
    lora: dict[str, Any] = {
        "enable_lora": True,
        "max_lora_rank": rank,
        "max_loras": settings.max_batch_adapters,
        "max_cpu_loras": max(settings.max_adapters, settings.max_batch_adapters),
        "enable_tower_connector_lora": model.image_token is not None,
        # Without the LM head: if it can have an adapter, vLLM on a CPU dies of a request for prompt logprobs.
        "lora_target_modules": sorted({layer.rpartition(".")[2] for layer in model.adaptable()}) or None,
    }
    return {
        "model": str(model_dir),
        "served_model_name": f"{model_dir.name}-{next(_hosts)}",
        "dtype": _DTYPES[settings.dtype] if settings.dtype else "float32" if cpu else "auto",
        "seed": settings.seed if settings.seed is not None else secrets.randbits(31),
        "max_model_len": -1,  # as long as the model's context and the KV cache allow
        "block_size": _CPU_BLOCK_SIZE if cpu else None,
        "kv_cache_memory_bytes": settings.kv_budget_bytes or (CPU_KV_BYTES if cpu else _gpu_kv_bytes(model, settings)),
        "gpu_memory_utilization": _MEMORY_FRACTION,
        "max_num_seqs": settings.max_num_seqs,
        "logprobs_mode": "processed_logprobs",
        # llguidance, with which the service compiles the same schemas (`synth.inference.grammar`).
        "structured_outputs_config": {"backend": "guidance"},
        "generation_config": "vllm",  # no sampling defaults from the model's files
        "enforce_eager": cpu,
        # It costs memory beside the weights, and CPUs have none of it.
        "enable_sleep_mode": settings.sleeps and not cpu,
        "use_tqdm_on_load": False,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "worker_extension_cls": "synth.inference.engines.vllm.plugin.worker.WorkerExtension",
        **(_vision(model) if model.image_token is not None else {}),
        **(lora if rank is not None else {"weight_transfer_config": {"backend": FILE_BACKEND}}),
        "hf_overrides": _overrides(model),
    }


def _overrides(model: BaseModelInfo) -> dict[str, Any]:
    """Return the values with which vLLM overrides the model's own configuration."""
    # The trainer computes logits in float32, and rounded ones are other probabilities.
    overrides: dict[str, Any] = {"head_dtype": "float32"}
    if model.image_token is not None:
        # vLLM reads this setting of the language model, transformers the whole model's.
        overrides["text_config"] = {"tie_word_embeddings": model.tied}
    return overrides


def _vision(model: BaseModelInfo) -> dict[str, Any]:
    """Return vLLM's settings for a model that takes images."""
    return {
        "limit_mm_per_prompt": {"image": _ANY_NUMBER, "video": 0},
        # The patches come normalised (`prompts`).
        "mm_device_do_normalize": False,
        # The service keeps the patches of an image; vLLM keeps the output of the vision tower for it.
        "mm_processor_cache_gb": 0,
    }


def _gpu_kv_bytes(model: BaseModelInfo, settings: EngineSettings) -> int:
    import torch

    free, _ = torch.cuda.mem_get_info(settings.device)
    wide = 4 if settings.dtype == "fp32" else 2
    weights = wide * sum(math.prod(shape) for shape in model.shapes.values())
    return gpu_kv_bytes(
        free,
        weights=weights,
        vocabulary=model.vocabulary,
        max_num_seqs=settings.max_num_seqs,
        kv_share=settings.kv_share,
    )


def _check_heads(model_dir: Path) -> None:
    """Raise `Permanent` for a width of heads that vLLM on a CPU lacks; it would die at the first request."""
    from transformers import AutoConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # pyright: ignore[reportMissingImports]

    text: Any = AutoConfig.from_pretrained(model_dir, local_files_only=True).get_text_config()
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    widths = CPUAttentionBackend.get_supported_head_sizes()
    if width not in widths:
        raise Permanent(
            f"the attention heads of {model_dir.name!r} are {width} wide; expected one of "
            f"{', '.join(map(str, widths))}, which vLLM has on a CPU; serve it with the engine 'transformers'"
        )

"""Loads a local model directory into a batcher that is ready to step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers import logging as transformers_logging

from synth.errors import Permanent
from synth.images.processor import ImageProcessor
from synth.images.qwen3_vl import MODEL_TYPES, ImagePatches, hidden_states
from synth.inference.engines import attention
from synth.inference.engines.batcher import Batcher, Forward
from synth.inference.engines.image_prompts import Decode, ImageReader
from synth.inference.engines.kv_cache import LayerShapes, SequenceCache, Shape
from synth.inference.engines.live_weights import LiveModel, model_dtype
from synth.inference.engines.settings import CPU_KV_BYTES, EngineSettings
from synth.inference.tokenizers import load_tokenizer
from synth.models.architectures import PLAIN, LogitRule, unusual_layers
from synth.models.memory import gpu_kv_bytes

# `from_pretrained` patches torch itself while it loads: two at once leave meta tensors, or a head that is not tied to
# the embeddings.
_LOADING_LOCK = threading.Lock()

# Images are attended to whole, each by itself, and have no cache.
_VISION_ATTENTION = {"text_config": attention.NAME, "vision_config": "sdpa"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and its batcher.

    max_context: tokens of one request at most, by the model and by the KV budget. vocabulary: the length of its logits.
    images: reads the images of prompts; None in a text model.
    """

    live: LiveModel
    batcher: Batcher
    max_context: int
    vocabulary: int
    images: ImageReader | None


def load_model(
    model_dir: Path, adapter: Path | None, settings: EngineSettings, *, decode: Decode, on_image: Callable[[], None]
) -> LoadedModel:
    """Load weights, adapter and tokenizer from local directories only, in the thread that will run the model.

    decode, on_image: return the pixels of an image of a request, and are called when it was read, in some thread.
    Raises `Permanent` for a directory without a model, and for an architecture with another attention or head than the
    plain one.
    """
    torch.set_num_threads(settings.threads)
    device = torch.device(settings.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    attention.register()
    transformers_logging.disable_progress_bar()
    try:
        whole: Any = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        config = whole.get_text_config()
        _reject_unusual(config)
        sees = config is not whole
        if sees and whole.model_type not in MODEL_TYPES:
            raise Permanent(
                f"model type {whole.model_type!r} is no text model and no Qwen3-VL; serve it with another engine"
            )
        kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        stored = cast(torch.dtype | None, whole.dtype or config.dtype)
        with _LOADING_LOCK:
            model: Any = kind.from_pretrained(
                model_dir,
                dtype=model_dtype(device, stored, settings.dtype),
                attn_implementation=_VISION_ATTENTION if sees else attention.NAME,
                local_files_only=True,
            )
        processor = ImageProcessor.load(model_dir) if sees else None
    except (OSError, ValueError, KeyError) as error:  # KeyError: a type with attention functions of its own
        raise Permanent(f"no model can be loaded from {model_dir.name!r}: {error}") from error
    model.to(device).eval()
    live = LiveModel(model, adapter)
    tokenizer = load_tokenizer(model_dir)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    forward = _vision_forward(model) if sees else _text_forward(decoder)
    cache = SequenceCache(
        layers=_layer_shapes(forward, device, config.model_type),
        dtype=model.dtype,
        device=device,
        budget_bytes=settings.kv_budget_bytes or _kv_budget(device, config.vocab_size, settings),
    )
    images = None
    if processor is not None:
        images = ImageReader(
            processor,
            image_token=int(model.config.image_token_id),
            max_bytes=settings.pixel_cache_bytes,
            decode=decode,
            on_read=on_image,
        )
    batcher = Batcher(
        forward=forward,
        head=float32_head(head, LogitRule.of(config)),
        cache=cache,
        stop_ids=sorted(stop_ids(model.generation_config.eos_token_id, tokenizer.ends)),
        vocabulary=config.vocab_size,
        device=device,
        decode=tokenizer.decode,
        max_num_seqs=settings.max_num_seqs,
        seed=settings.seed,
        images=images,
    )
    max_context = min(config.max_position_embeddings, cache.budget_tokens)
    return LoadedModel(live, batcher, max_context, config.vocab_size, images)


def float32_head(head: Any, rule: LogitRule = PLAIN) -> Callable[[Tensor], Tensor]:
    """Return a function from hidden states [N, E] to logits [N, V] in float32 for any model dtype, as in the trainer.

    In bfloat16 a logit near 20 is rounded to an eighth, which the softmax has no way to undo. A GPU's tensor cores sum
    products of half precision in float32, so that these need no cast.
    """

    def logits(hidden_NE: Tensor) -> Tensor:
        weight_VE = head.weight  # read at each call: new weights are written into it
        if weight_VE.dtype == torch.float32:
            return rule.logits(head(hidden_NE))
        if hidden_NE.is_cuda and hidden_NE.dtype == weight_VE.dtype:
            logits_NV = torch.mm(hidden_NE, weight_VE.T, out_dtype=torch.float32)
        else:
            logits_NV = hidden_NE.float() @ weight_VE.float().T
        return rule.logits(logits_NV if head.bias is None else logits_NV + head.bias.float())

    return logits


def _text_forward(decoder: Any) -> Forward:
    def forward(
        ids_BQ: Tensor,
        positions_BQ: Tensor,
        mask: Tensor | None,
        kv: SequenceCache | LayerShapes | None,
        _: ImagePatches | None,
    ) -> Tensor:
        return decoder(
            input_ids=ids_BQ,
            position_ids=positions_BQ,
            attention_mask=mask,
            past_key_values=kv,
            use_cache=kv is not None,
        ).last_hidden_state

    return forward


def _vision_forward(model: Any) -> Forward:
    def forward(
        ids_BQ: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        kv: SequenceCache | LayerShapes | None,
        patches: ImagePatches | None,
    ) -> Tensor:
        positions_3BQ = positions if positions.ndim == 3 else positions.expand(3, -1, -1)
        return hidden_states(
            model,
            ids_BQ,
            positions_3BQ,
            patches,
            attention_mask=mask,
            past_key_values=kv,
            use_cache=kv is not None,
        )

    return forward


def stop_ids(configured: int | list[int] | None, ends: frozenset[int]) -> set[int]:
    """Return the ids that end a completion: of the generation config, and those that end a turn in the template."""
    listed = configured if isinstance(configured, list) else [configured]
    return {*ends, *(i for i in listed if i is not None)}


def _layer_shapes(forward: Forward, device: torch.device, model_type: str) -> dict[int, tuple[Shape, Shape]]:
    """Return the shapes of the keys and values of each layer that stores some, after a forward of one token."""
    shapes = LayerShapes()
    first = torch.zeros((1, 1), dtype=torch.int64, device=device)
    try:
        with torch.inference_mode():
            forward(first, first, None, shapes, None)
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        raise Permanent(
            f"model type {model_type!r} keeps more than keys and values ({error}); serve it with another engine"
        ) from error
    if not shapes.layers:
        raise Permanent(f"model type {model_type!r} has no keys and values; serve it with another engine")
    return shapes.layers


def _kv_budget(device: torch.device, vocabulary: int, settings: EngineSettings) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)  # the weights are there already
        return gpu_kv_bytes(
            free,
            weights=0,
            vocabulary=vocabulary,
            max_num_seqs=settings.max_num_seqs,
            kv_share=settings.kv_share,
        )
    return CPU_KV_BYTES


def _reject_unusual(config: Any) -> None:
    if unusual := unusual_layers(config):
        raise Permanent(f"model type {config.model_type!r} {unusual}; serve it with another engine")

"""A model folder as a Hugging Face model: a causal language model, or one that sees images too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from synth.images.qwen3_vl import is_qwen3_vl
from synth.methods.base import TrainingJob
from synth.models.architectures import unusual_layers
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.model.varlen_attention import choose_attention
from synth.trainer.machine import Machine

#: The modules of the vision tower that make embeddings of its features.
_PROJECTOR = ("merger.", "deepstack_merger_list.")


def load_base_model(model_dir: Path, job: TrainingJob, machine: Machine, compute_dtype: torch.dtype) -> Any:
    """Load the weights of a folder (never the network), on the CPU.

    Frozen weights have the dtype of the computation, trainable weights are float32. If the vision tower is frozen, only
    its projector is trained. Raises `TrainingFailed` (bad_model).
    """
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model_config: Any = AutoConfig.from_pretrained(str(model_dir), local_files_only=True)
        sees = getattr(model_config, "vision_config", None) is not None
        attention = choose_attention(model_config, torch.device(machine.device), compute_dtype)
        auto: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        model: Any = auto.from_pretrained(
            str(model_dir),
            config=model_config,
            dtype=torch.float32 if job.mode == "full" else compute_dtype,
            # The kernels for packed text are causal; an image's patches all attend to one another.
            attn_implementation={"text_config": attention, "vision_config": "sdpa"} if sees else attention,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError) as error:  # KeyError: a type with attention functions of its own
        raise TrainingFailed("bad_model", f"{model_dir.name} cannot be loaded as a causal LM: {error}") from error
    if sees and not is_qwen3_vl(model):
        raise TrainingFailed(
            "bad_model", f"{model_dir.name} is a {model_config.model_type}, which sees; expected a Qwen3-VL"
        )
    unusual = unusual_layers(model_config.get_text_config(), states=True)
    if unusual is not None:
        raise TrainingFailed("bad_model", f"{model_dir.name}, a {model_config.model_type}, {unusual}")
    model.config.use_cache = False
    if sees and job.mode == "full" and (job.vision is None or job.vision.freeze_vision_tower):
        for name, parameter in model.model.visual.named_parameters():
            parameter.requires_grad_(name.startswith(_PROJECTOR))
    return model


def attention_of(model: Any) -> str:
    """Return how a model computes the attention of its text, by the name in transformers."""
    return model.config.get_text_config()._attn_implementation


def set_attention(model: Any, attention: str) -> None:
    """Let a model compute the attention of its text in this way."""
    model.set_attn_implementation({"text_config": attention} if is_qwen3_vl(model) else attention)

"""The facts about a model directory that a host needs: the names and shapes of its tensors, and its stop tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from synth.errors import Permanent
from synth.images.processor import ImageProcessor
from synth.images.qwen3_vl import MODEL_TYPES
from synth.inference.engines.loading import stop_ids
from synth.inference.tokenizers import load_tokenizer
from synth.models.architectures import has_experts

_HEAD = "lm_head.weight"
_ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")
#: Layers of the vision tower and the projector. Not the tower's `attn.proj`: vLLM matches by the last name, and another
#: `proj`, of the patches, can have no adapter.
_VISION = re.compile(
    r"\bvisual\.(blocks\.\d+\.(attn\.qkv|mlp\.linear_fc[12])|(merger|deepstack_merger_list\.\d+)\.linear_fc[12])$"
)


@dataclass(frozen=True, slots=True)
class BaseModelInfo:
    """files: its safetensors files. shapes: of every tensor by its Hugging Face name, without a tied LM head.

    tied: whether the LM head is the embedding. vocabulary: the rows of the embedding.
    stop_ids: the ids that end a completion. experts: whether its layers have experts.
    image_token: stands for an image's patches, and image_processor: makes them; None in a text model.
    """

    files: list[Path]
    shapes: dict[str, tuple[int, ...]]
    tied: bool
    vocabulary: int
    stop_ids: list[int]
    experts: bool = False
    image_token: int | None = None
    image_processor: ImageProcessor | None = None

    @property
    def embedding(self) -> str:
        """The name of the embedding's tensor."""
        return next(name for name in self.shapes if name.endswith("embed_tokens.weight"))

    def adaptable(self) -> dict[str, tuple[int, int]]:
        """Return the linear layers that an adapter can be over: by name, the rows and columns of their weight.

        Experts are left out: transformers keeps the experts of a layer as one tensor, and peft adds no adapter to it.
        """
        layers: dict[str, tuple[int, int]] = {}
        for name, shape in self.shapes.items():
            layer = name.removesuffix(".weight")
            in_language_model = (
                layer.rpartition(".")[2] in _ADAPTED and ".layers." in layer and ".experts." not in layer
            )
            if (in_language_model or _VISION.search(layer)) and len(shape) == 2:
                layers[layer] = (shape[0], shape[1])
        return layers


def read_base_model_info(model_dir: Path) -> BaseModelInfo:
    """Read the headers only.

    Raises `Permanent` for a directory without a tokenizer or a model in safetensors, and for one that sees and is no
    Qwen3-VL.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        config: Any = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        files = sorted(model_dir.glob("*.safetensors"))
        shapes = {name: shape for file in files for name, shape in _shapes(file)}
    except (OSError, ValueError, SafetensorError) as error:
        raise Permanent(f"no model can be loaded from {model_dir.name!r}: {error}") from error
    if not shapes:
        raise Permanent(f"no model can be loaded from {model_dir.name!r}: expected weights in safetensors files")
    text = config.get_text_config()
    if text is not config and config.model_type not in MODEL_TYPES:
        raise Permanent(f"model type {config.model_type!r} is no text model and no Qwen3-VL; no engine can serve it")
    # transformers decides about tying by the whole config.
    tied = bool(config.tie_word_embeddings)
    if tied:
        shapes.pop(_HEAD, None)
    try:
        ends = GenerationConfig.from_pretrained(model_dir, local_files_only=True).eos_token_id
    except OSError:
        ends = text.eos_token_id
    return BaseModelInfo(
        files=files,
        shapes=shapes,
        tied=tied,
        vocabulary=text.vocab_size,
        stop_ids=sorted(stop_ids(ends, load_tokenizer(model_dir).ends)),
        experts=has_experts(text.to_dict()),
        image_token=None if text is config else int(config.image_token_id),
        image_processor=None if text is config else ImageProcessor.load(model_dir),
    )


def _shapes(file: Path) -> list[tuple[str, tuple[int, ...]]]:
    with cast(Any, safe_open(file, framework="pt")) as opened:
        return [(name, tuple(opened.get_slice(name).get_shape())) for name in opened.keys()]  # noqa: SIM118

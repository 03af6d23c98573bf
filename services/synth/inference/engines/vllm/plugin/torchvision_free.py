"""Lets vLLM load a Qwen3-VL in an environment without torchvision.

vLLM needs two names of transformers' modules on torchvision, which cannot be imported without it, and a processor whose
videos need it. It computes no image that we serve (see `prompts`): it uses its processor only for sizes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_TORCHVISION = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)
_MEDIA_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
_NEEDING_IT = (
    "transformers.models.qwen2_vl.image_processing_qwen2_vl",
    "transformers.models.qwen2_vl.video_processing_qwen2_vl",
)


def make_qwen3_vl_loadable() -> None:
    """Make it loadable in this process; do nothing if torchvision is installed."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    # Whether torchvision is there must be known before the stand-in is.
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()
    with _stand_in():
        for name in _NEEDING_IT:
            importlib.import_module(name)
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    setattr(Qwen3VLProcessor, "from_pretrained", classmethod(_load_processor))  # noqa: B010


@contextmanager
def _stand_in() -> Iterator[None]:
    """Make `import torchvision` give empty modules within the context."""
    try:
        for name in _TORCHVISION:
            sys.modules[name] = ModuleType(name)
        vars(sys.modules["torchvision.transforms.v2"])["functional"] = sys.modules[_TORCHVISION[-1]]
        yield
    finally:
        for name in _TORCHVISION:
            sys.modules.pop(name, None)


def _load_processor(cls: Any, model_dir: str, *args: Any, tokenizer: Any = None, **kwargs: Any) -> Any:
    """Return a model folder's processor, with images on Pillow, and the sizes of videos alone."""
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    # Neither is given to the initialiser, which looks whether a video could be processed.
    processor = cls.__new__(cls)
    processor.chat_template = None
    processor.tokenizer = tokenizer or AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    processor.image_processor = Qwen2VLImageProcessorPil.from_pretrained(model_dir, local_files_only=True)
    processor.video_processor = Qwen3VLVideoProcessor.__new__(Qwen3VLVideoProcessor)
    for name, token in _MEDIA_TOKENS.items():
        setattr(processor, name, token)
        setattr(processor, f"{name}_id", processor.tokenizer.convert_tokens_to_ids(token))
    return processor

"""Images, prompts that show them, and the logprobs of a tiny real Qwen3-VL by transformers' own forward."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from synth.images.processor import ImageProcessor
from synth.images.prompt_image import expand_image_tokens
from synth.images.qwen3_vl import media_tokens
from synth.inference.engines.protocol import EngineImage
from tests.decoders import DECODER


def picture(seed: int, width: int = 64, height: int = 64, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """The file of an image of random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST).convert(mode).save(out, kind)
    return out.getvalue()


class VisionReference:
    """The model under the library's own attention and positions. media: tokens that are never sampled."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3VLForConditionalGeneration

        self.model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
        self.processor = ImageProcessor.load(folder)
        self.pad: int = self.model.config.image_token_id
        self.media = media_tokens(self.model.config)

    def shown(self, body: bytes) -> EngineImage:
        digest = hashlib.sha256(body).hexdigest()
        return EngineImage(self.processor.describe(body, sha256=digest, uri=f"blob://{digest}"), body, DECODER)

    def prompt(self, text: Sequence[int], images: Sequence[EngineImage]) -> list[int]:
        """Ids in which each -1 of `text` is the next image."""
        return expand_image_tokens([self.pad if i < 0 else i for i in text], [i.shown for i in images], self.pad)

    def logprobs(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        images: Sequence[EngineImage] = (),
        *,
        banned: Sequence[int] = (),
        model: Any = None,
    ) -> Tensor:
        """float32 [C]: logprobs of the sampled tokens, by one forward over the whole sequence on its own."""
        ids_1L = torch.tensor([[*prompt, *sampled]])
        seen: dict[str, Any] = {}
        if images:
            pixels = [self.processor.file_patches(image.body, image.shown) for image in images]
            seen["pixel_values"] = torch.from_numpy(np.concatenate(pixels))
            seen["image_grid_thw"] = torch.tensor([[1, i.shown.height, i.shown.width] for i in images])
            seen["mm_token_type_ids"] = (ids_1L == self.pad).int()
        with torch.no_grad():
            logits = (model or self.model)(ids_1L, use_cache=False, **seen).logits[0, len(prompt) - 1 : -1].float()
        logits[:, list(banned)] = -torch.inf
        return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(sampled)[:, None]).squeeze(1)

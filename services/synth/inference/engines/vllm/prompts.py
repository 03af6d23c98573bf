"""Prompts in vLLM's form: ids, and the patches that we make of images.

vLLM's own image processor is not used. So the trainer and both engines see the same pixels, and a prompt's image
tokens stay the same as in its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synth.images.prompt_image import PromptImage


def text_input(prompt_ids: Sequence[int], *, org: str = "") -> dict[str, Any]:
    """Return vLLM's input for a prompt that shows no image. org: its own part of the prefix cache."""
    return {"prompt_token_ids": list(prompt_ids), **({"cache_salt": org} if org else {})}


def multimodal_input(
    prompt_ids: Sequence[int], images: Sequence[PromptImage], patches: Sequence[Tensor], *, image_token: int, org: str
) -> dict[str, Any]:
    """Return vLLM's input for a prompt that shows images.

    prompt_ids: with each image as a run of its tokens. patches: of each image, in the model's dtype. The prefix cache
    takes the images' digests into its keys. org: its own part of that cache.
    """
    from vllm.inputs.engine import mm_input  # pyright: ignore[reportMissingImports]
    from vllm.multimodal.inputs import (  # pyright: ignore[reportMissingImports]
        MultiModalKwargsItems,
        PlaceholderRange,
    )

    starts = image_starts(prompt_ids, images, image_token=image_token)
    return mm_input(
        prompt_token_ids=list(prompt_ids),
        mm_kwargs=MultiModalKwargsItems(
            {"image": [_item(image, of_image) for image, of_image in zip(images, patches, strict=True)]}
        ),
        mm_hashes={"image": [image.sha256 for image in images]},
        mm_placeholders={
            "image": [
                PlaceholderRange(offset=start, length=image.tokens) for start, image in zip(starts, images, strict=True)
            ]
        },
        cache_salt=org or None,
    )


def image_starts(prompt_ids: Sequence[int], images: Sequence[PromptImage], *, image_token: int) -> list[int]:
    """Return where each image's run of tokens begins; the ids have as many image tokens as the images."""
    positions = np.flatnonzero(np.asarray(prompt_ids) == image_token)
    before = np.cumsum([0, *(image.tokens for image in images)])[:-1]
    return positions[before].tolist()


def _item(image: PromptImage, patches: Tensor) -> Any:
    from vllm.multimodal.inputs import (  # pyright: ignore[reportMissingImports]
        MultiModalFieldConfig,
        MultiModalKwargsItem,
    )

    grid_13 = torch.tensor([[1, image.height, image.width]])
    flat = MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([len(patches)]))
    one = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
    (pixel_values,) = flat.build_elems("pixel_values", patches)
    (image_grid_thw,) = one.build_elems("image_grid_thw", grid_13)
    return MultiModalKwargsItem({"pixel_values": pixel_values, "image_grid_thw": image_grid_thw})

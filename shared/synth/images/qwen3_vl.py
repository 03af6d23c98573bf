"""The forward of a Qwen3-VL, dense or MoE, as the trainer and the transformers engine both run it.

transformers' own forward computes the images' positions by itself and takes one batch of padded rows. This one is given
the positions, so that rows may be packed or continued from a KV cache, and gives the vision tower none of the arguments
of the language model's attention.

Shapes: B rows of L tokens, D hidden; I images with P patches in all, K of them merged; X values of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.images.prompt_image import PromptImage

MODEL_TYPES = ("qwen3_vl", "qwen3_vl_moe")


@dataclass(frozen=True)
class ImagePatches:
    """The images of a forward, in the order of their tokens. pixels: float32 [P, X]. grid: int64 [I, 3] (1, rows,
    columns)."""

    pixels_PX: Tensor
    grid_I3: Tensor

    @classmethod
    def of(
        cls, pixels: Sequence[npt.NDArray[np.float32]], images: Sequence[PromptImage], device: torch.device | str
    ) -> ImagePatches | None:
        """Return the images of a forward with these patches, in parallel lists; None without any."""
        if not images:
            return None
        return cls(
            torch.as_tensor(np.concatenate(pixels), device=device),
            torch.tensor([[1, image.height, image.width] for image in images], device=device),
        )

    @classmethod
    def blank(cls, model: Any, device: torch.device | str) -> ImagePatches:
        """Return a grey image of one token."""
        vision = model.config.vision_config
        side = vision.spatial_merge_size
        values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return cls(torch.zeros(side * side, values, device=device), torch.tensor([[1, side, side]], device=device))


def is_qwen3_vl(model: Any) -> bool:
    """Return whether a Hugging Face model is one that this module runs."""
    return model.config.model_type in MODEL_TYPES


def hidden_states(
    model: Any,
    ids_BL: Tensor,
    positions_3BL: Tensor,
    patches: ImagePatches | None,
    *,
    unseen: bool = False,
    **attention: Any,
) -> Tensor:
    """Return the last hidden states, [B, L, D], of `Qwen3VLForConditionalGeneration`.

    ids: int64, each image as a run of image tokens. positions: of `mrope_positions`. unseen: the patches belong to no
    token of `ids`; the vision tower computes them without effect, so that its gradients exist, and are 0. attention:
    the further arguments of the language model: `attention_mask`, `past_key_values`, `use_cache`, or the ends of packed
    sequences.
    """
    inner = model.model
    embeds_BLD = inner.language_model.embed_tokens(ids_BL)
    mask_BL, features = None, None
    if patches is not None:
        vision = inner.visual(patches.pixels_PX.to(inner.visual.dtype), grid_thw=patches.grid_I3)
        if unseen:
            unused = torch.stack([x.sum() for x in (vision.pooler_output, *vision.deepstack_features)])
            embeds_BLD = embeds_BLD + (0.0 * unused.sum()).to(embeds_BLD.dtype)
        else:
            mask_BL = ids_BL == model.config.image_token_id
            if int(mask_BL.sum()) != len(vision.pooler_output):
                raise ValueError(f"{int(mask_BL.sum())} image tokens for {len(vision.pooler_output)} merged patches")
            embeds_BLD = embeds_BLD.masked_scatter(mask_BL[:, :, None], vision.pooler_output.to(embeds_BLD.dtype))
            features = vision.deepstack_features
    return inner.language_model(
        inputs_embeds=embeds_BLD,
        position_ids=positions_3BL,
        visual_pos_masks=mask_BL,
        deepstack_visual_embeds=features,
        **attention,
    ).last_hidden_state


def media_tokens(config: Any) -> tuple[int, ...]:
    """Return the ids of media, and of the marks around media, in a prompt of this model; a reply never has one."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return tuple(sorted({int(getattr(config, name)) for name in names if getattr(config, name, None) is not None}))

"""Our forward and our positions against transformers' own, on a real small Qwen3-VL."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from synth.images.positions import mrope_positions
from synth.images.processor import ImageProcessor
from synth.images.prompt_image import PromptImage, expand_image_tokens
from synth.images.qwen3_vl import ImagePatches, hidden_states
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3_vl(tmp_path_factory.mktemp("vl") / "tiny-qwen3-vl").path


def png(width: int, height: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_positions_and_hidden_states_are_those_of_transformers(folder: Path):
    from transformers import Qwen3VLForConditionalGeneration

    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder).eval()
    processor = ImageProcessor.load(folder)
    bodies = [png(64, 64, 0), png(100, 50, 1), png(40, 120, 2)]
    shown = [processor.describe(body, sha256=str(i), uri="") for i, body in enumerate(bodies)]
    pad = model.config.image_token_id
    ids = expand_image_tokens([5, 6, pad, 7, 8, 9, pad, 12, pad, 10, 11], shown, pad)
    ids_1L = torch.tensor([ids])
    pixels = [processor.file_patches(body, image) for body, image in zip(bodies, shown, strict=True)]
    patches = ImagePatches.of(pixels, shown, "cpu")
    assert patches is not None
    positions, after = mrope_positions(np.asarray(ids), shown, image_token=pad, merge_size=processor.merge_size)
    theirs, delta = model.model.get_rope_index(ids_1L, (ids_1L == pad).int(), patches.grid_I3)
    assert positions.tolist() == theirs[:, 0].tolist()
    assert after == len(ids) + int(delta)
    with torch.no_grad():
        ours_1LD = hidden_states(model, ids_1L, torch.from_numpy(positions)[:, None], patches, use_cache=False)
        expected = model.model(
            input_ids=ids_1L,
            pixel_values=patches.pixels_PX,
            image_grid_thw=patches.grid_I3,
            mm_token_type_ids=(ids_1L == pad).int(),
            use_cache=False,
        ).last_hidden_state
    assert torch.equal(ours_1LD, expected)


def test_text_alone_has_the_positions_that_text_has():
    positions, after = mrope_positions(np.arange(7), [], image_token=99, merge_size=2)
    assert positions.tolist() == [list(range(7))] * 3
    assert after == 7


@pytest.mark.parametrize(
    ("tokens", "images"),
    [
        ([1, 9, 9, 9], [PromptImage("a", 1, "", 4, 4, 4)]),
        ([9, 9, 1, 9, 9], [PromptImage("a", 1, "", 4, 4, 4)]),
        ([9, 9, 9, 9, 9], [PromptImage("a", 1, "", 4, 4, 4)]),
    ],
)
def test_image_tokens_that_are_not_those_of_the_images_are_refused(tokens: list[int], images: list[PromptImage]):
    with pytest.raises(ValueError, match="image"):
        mrope_positions(np.asarray(tokens), images, image_token=9, merge_size=2)

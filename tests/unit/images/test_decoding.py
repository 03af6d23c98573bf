"""An image's file becomes pixels as its header says, or is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from synth.images.format import NotAnImage
from synth.images.processor import open_image


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_a_grey_image_of_16_bits_keeps_its_shades():
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    shown = np.asarray(open_image(file_of(Image.fromarray(ramp))))
    assert shown.shape == (8, 8, 3)
    assert shown[..., 0].tolist() == (ramp // 257).tolist()


def test_of_an_animation_the_first_frame_is_shown():
    first, second = Image.new("RGB", (8, 8), (250, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 250))
    animated = file_of(first, "GIF", save_all=True, append_images=[second])
    assert np.asarray(open_image(animated))[0, 0].tolist() == [250, 0, 0]


def test_colours_of_print_become_those_of_a_screen():
    assert open_image(file_of(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")).mode == "RGB"


def test_a_file_that_ends_early_is_refused():
    with pytest.raises(NotAnImage, match="cannot be decoded"):
        open_image(file_of(Image.new("RGB", (64, 64), (1, 2, 3)))[:60])

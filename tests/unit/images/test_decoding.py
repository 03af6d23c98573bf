"""An image's file becomes pixels as its header says, or is refused."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageDraw

from synth.images.decoding import open_image
from synth.images.format import ImageRefused, NotAnImage
from tests.decoders import DECODER

RED, BLUE = (250, 0, 0), (0, 0, 250)


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_a_grey_image_of_16_bits_keeps_its_shades():
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    shown = np.asarray(open_image(file_of(Image.fromarray(ramp))))
    assert shown.shape == (8, 8, 3)
    assert shown[..., 0].tolist() == (ramp // 257).tolist()


def test_colours_of_print_become_those_of_a_screen():
    assert open_image(file_of(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")).mode == "RGB"


def _noise(size: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8))


def _drawn(mode: str, nothing: object, black: object) -> Image.Image:
    image = Image.new(mode, (16, 16), nothing)  # pyright: ignore[reportArgumentType]
    ImageDraw.Draw(image).rectangle([0, 0, 7, 15], fill=black)  # pyright: ignore[reportArgumentType]
    return image


def _palette() -> Image.Image:
    image = _drawn("P", 0, 1)
    image.putpalette([10, 20, 30, 0, 0, 0])
    return image


_CLEAR = ((0, 0, 0, 0), (0, 0, 0, 255))
TRANSPARENT: dict[str, Callable[[], bytes]] = {
    "rgba": lambda: file_of(_drawn("RGBA", *_CLEAR)),
    "grey with alpha": lambda: file_of(_drawn("LA", (0, 0), (0, 255))),
    "palette with one colour": lambda: file_of(_palette(), transparency=0),
    "palette with alpha": lambda: file_of(_palette(), transparency=b"\x00\xff"),
    "grey with a colour": lambda: file_of(_drawn("L", 9, 0), transparency=9),
    "rgb with a colour": lambda: file_of(_drawn("RGB", (9, 9, 9), (0, 0, 0)), transparency=(9, 9, 9)),
    "black and white": lambda: file_of(_drawn("1", 1, 0), transparency=1),
    "16 bits": lambda: file_of(Image.fromarray(np.repeat([[0, 9]], 8, 1).repeat(16, 0).astype("<u2")), transparency=9),
    "webp": lambda: file_of(_drawn("RGBA", *_CLEAR), "WEBP", lossless=True),
    "webp lossy": lambda: file_of(_drawn("RGBA", *_CLEAR), "WEBP", quality=100),
    "gif": lambda: file_of(_palette(), "GIF", transparency=0),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_a_transparent_image_is_shown_on_white(kind: str):
    shown = np.asarray(open_image(TRANSPARENT[kind]())).astype(int)
    assert shown.shape == (16, 16, 3)
    assert shown[:, :8].max() <= 2
    assert shown[:, 8:].min() == 255


def test_a_half_transparent_colour_is_mixed_with_white():
    assert open_image(file_of(Image.new("RGBA", (4, 4), (255, 0, 0, 128)))).getpixel((0, 0)) == (255, 127, 127)


def _png_of(width: int, height: int) -> bytes:
    """A small file of many pixels."""
    whole = bytearray(file_of(Image.new("L", (4, 4))))
    whole[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    return bytes(whole)


def _animation(kind: str) -> bytes:
    frames = Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), BLUE)
    return file_of(frames[0], kind, save_all=True, append_images=[frames[1]])


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "half a JPEG": (lambda: file_of(_noise(), "JPEG")[:2000], "cannot be decoded"),
    "half a progressive JPEG": (lambda: file_of(_noise(), "JPEG", progressive=True)[:2000], "cannot be decoded"),
    "half a PNG": (lambda: file_of(_noise())[:2000], "cannot be decoded"),
    "half a WebP": (lambda: file_of(_noise(), "WEBP")[:2000], "cannot be decoded"),
    "half a GIF": (lambda: file_of(_noise(), "GIF")[:2000], "cannot be decoded"),
    "a PNG without its pixels": (lambda: file_of(_noise())[:60], "cannot be decoded"),
    "a PNG that holds less than it says": (lambda: _png_of(4000, 4000), "cannot be decoded"),
    "a bomb": (lambda: _png_of(40_000, 40_000), "1,000,000|50,000,000; make it smaller"),
    "a GIF animation": (lambda: _animation("GIF"), "an animation"),
    "a WebP animation": (lambda: _animation("WEBP"), "an animation"),
    "a PNG animation": (lambda: _animation("PNG"), "an animation"),
    "one pixel high": (lambda: file_of(Image.new("L", (512, 1))), "sides of at most 1 to 200"),
    "one pixel wide": (lambda: file_of(Image.new("L", (1, 201)), "GIF"), "sides of at most 1 to 200"),
    "a TIFF": (lambda: file_of(Image.new("RGB", (8, 8)), "TIFF"), "not a PNG, JPEG, WebP or GIF"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_an_image_that_no_model_can_be_shown_is_refused_when_it_is_checked(kind: str):
    body, reason = REFUSED[kind]
    with pytest.raises(ImageRefused, match=reason) as refused:
        await DECODER.check(body())
    if kind != "a bomb":
        with pytest.raises(NotAnImage) as here:
            open_image(body())
        assert str(refused.value) == str(here.value)


def test_a_picture_that_is_one_row_of_pixels_is_shown_if_it_is_not_too_long():
    assert open_image(file_of(Image.new("L", (200, 1)))).size == (200, 1)


def test_a_photo_with_a_preview_is_no_animation():
    photo = file_of(Image.new("RGB", (8, 8), RED), "MPO", save_all=True, append_images=[Image.new("RGB", (4, 4))])
    assert open_image(photo).size == (8, 8)


def test_a_file_that_ends_early_is_refused():
    with pytest.raises(NotAnImage, match="cannot be decoded"):
        open_image(file_of(Image.new("RGB", (64, 64), (1, 2, 3)))[:60])

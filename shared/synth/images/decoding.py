"""From the file of an image to pixels: the one function with which files are checked, models trained and prompts shown.

A file that a trainer or an engine could not use is refused at upload or in the request, so that an accepted image never
ends a job.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from synth.images.format import ImageFormat, NotAnImage, read_image_format

if TYPE_CHECKING:
    from PIL.Image import Image

#: The limit of Qwen's image processor: a longer image would become a single row of patches.
MAX_ASPECT = 200
#: Pillow's shades of 16 bits, in steps of one of 8 bits.
_STEP_OF_16_BITS = 257


def open_image(body: bytes) -> Image:
    """Decode an image's file into RGB. Transparent pixels are composited on white; EXIF orientation is not applied.

    Raises `NotAnImage` for a file that is not an image or cannot be decoded whole, one whose header has another size,
    an animation, and sides of more than 1 to `MAX_ASPECT`.
    """
    from PIL import Image as images

    header = read_image_format(body)
    check_aspect(header.width, header.height)
    try:
        with images.open(io.BytesIO(body), formats=("PNG", "JPEG", "WEBP", "GIF")) as opened:
            _check_opened(opened, header)
            return _on_white(opened)
    except NotAnImage:
        raise
    # Pillow raises any error of its decoders for a broken file, SyntaxError and struct.error too.
    except Exception as error:
        raise NotAnImage(f"an image that cannot be decoded: {error}") from error


def check_aspect(width: int, height: int) -> None:
    """Raise `NotAnImage` for an image that no image processor takes."""
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise NotAnImage(f"an image of {width}×{height} pixels; expected sides of at most 1 to {MAX_ASPECT}")


def _check_opened(opened: Any, header: ImageFormat) -> None:
    if opened.size != (header.width, header.height):
        raise NotAnImage(f"an image of {opened.size}, whose header says {(header.width, header.height)}")
    # A JPEG may hold previews as further pictures (MPO, which phones write): they are not an animation.
    if header.kind != "jpeg" and getattr(opened, "is_animated", False):
        raise NotAnImage("an animation; expected one picture; send the frame that is meant")


def _on_white(opened: Any) -> Image:
    """Return the picture in RGB, composited on white if it has an alpha channel or a transparent colour."""
    from PIL import Image as images

    if opened.mode.startswith("I;16"):
        return _from_16_bits(opened)
    if not opened.has_transparency_data:
        return opened.convert("RGB")
    picture = opened.convert("RGBA")
    white = images.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    return white.convert("RGB")


def _from_16_bits(opened: Any) -> Image:
    """Return the picture of shades of 16 bits: Pillow's own conversion cuts off values above 255."""
    from PIL import Image as images
    from PIL import ImageMath

    def scaled(of: dict[str, Any]) -> Any:
        return of["convert"](of["shades"] / _STEP_OF_16_BITS, "L")

    def shown(of: dict[str, Any]) -> Any:
        return of["convert"]((of["shades"] != transparent) * 255, "L")

    evaluate: Any = ImageMath.lambda_eval
    shades = opened.convert("I")
    grey = evaluate(scaled, shades=shades)
    transparent = opened.info.get("transparency")
    if isinstance(transparent, int):
        grey = images.composite(grey, images.new("L", grey.size, 255), evaluate(shown, shades=shades))
    return grey.convert("RGB")

"""Decode an image in its own process (`synth.images.decoder`), which imports this once, before any fork."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image

from synth.images.decoding import open_image
from synth.images.format import NotAnImage

# Pillow imports its decoders when the first image is opened.
Image.init()


def decode_image(request: bytes, write: Callable[[bytes], None]) -> None:
    """Decode an image's file, which is the request without its first byte.

    Write the first byte again if it can be decoded: alone for `c`, followed by the pixels in RGB for `p`. Write `e` and
    the reason if it cannot.
    """
    result, body = request[:1], memoryview(request)[1:].tobytes()
    try:
        image = open_image(body)
    except NotAnImage as error:
        write(b"e" + str(error).encode())
        return
    write(result)
    if result == b"p":
        write(image.tobytes())

"""Decodes an image in a process of its own (`synth.sandbox.decoders`), which imports this once, before any fork."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image

from synth.images.decoding import open_image
from synth.images.format import NotAnImage

# Pillow imports its decoders when the first image is opened.
Image.init()


def decode_image(body: bytes, write: Callable[[bytes], None]) -> None:
    """Write why a file is no image that can be decoded; nothing if it is one."""
    try:
        open_image(body)
    except NotAnImage as error:
        write(str(error).encode())

"""The kind and size of a PNG, JPEG, WebP or GIF image, from its header. No pixel is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from synth.errors import SynthError

_PNG = b"\x89PNG\r\n\x1a\n"
#: Start-of-frame markers of JPEG: all of C0 … CF but the tables' (C4, CC) and the one that is reserved (C8).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE = frozenset(range(0xD0, 0xD9)) | {0x01}
#: Parts of a file before its size, which are passed on an event loop in some milliseconds. Files have a few hundred.
_MOST_PARTS = 1 << 14


class ImageRefused(SynthError):
    """The image cannot be fetched, or the bytes are not an image; the text is the reason for a user."""


class NotAnImage(SynthError):
    """These bytes are not an image that a model can take."""


class ImageFormat(NamedTuple):
    """kind: png, jpeg, webp or gif; width, height: in pixels."""

    kind: str
    width: int
    height: int


def read_image_format(body: bytes) -> ImageFormat:
    """Return the kind and size of the image in these bytes. Raises `NotAnImage`."""
    try:
        header = _read_header(body)
    except (struct.error, IndexError) as error:
        raise NotAnImage(f"an image that ends after {len(body)} bytes, inside its header") from error
    if header is None:
        begins = body[:8].hex(" ") or "nothing"
        raise NotAnImage(f"not a PNG, JPEG, WebP or GIF image (its bytes begin with {begins})")
    if not (header.width and header.height):
        raise NotAnImage(f"a {header.kind} image of {header.width}×{header.height} pixels")
    return header


def _read_header(body: bytes) -> ImageFormat | None:
    if body.startswith(_PNG):
        if body[12:16] != b"IHDR":
            return None
        return ImageFormat("png", *struct.unpack_from(">II", body, 16))
    if body.startswith((b"GIF87a", b"GIF89a")):
        return _gif(body)
    if body.startswith(b"RIFF") and body[8:12] == b"WEBP":
        return _webp(body)
    if body.startswith(b"\xff\xd8\xff"):
        return _jpeg(body)
    return None


def _count_part(parts: Iterator[int]) -> None:
    if next(parts, None) is None:
        raise NotAnImage(f"an image whose header has more than {_MOST_PARTS:,} parts")


def _gif(body: bytes) -> ImageFormat | None:
    """Return the size of a GIF for decoders: of its screen, or of a larger first frame."""
    width, height = struct.unpack_from("<HH", body, 6)
    at = 13 + (3 << (body[10] & 7) + 1 if body[10] & 0x80 else 0)
    parts = iter(range(_MOST_PARTS))
    while body[at] == 0x21:  # an extension: its sub-blocks, each behind its length, up to one of length 0
        at += 2
        while body[at]:
            _count_part(parts)
            at += body[at] + 1
        _count_part(parts)
        at += 1
    if body[at] != 0x2C:
        return None
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", body, at + 1)
    return ImageFormat("gif", max(width, left + frame_width), max(height, top + frame_height))


def _webp(body: bytes) -> ImageFormat | None:
    chunk = body[12:16]
    if chunk == b"VP8X":
        return ImageFormat("webp", 1 + int.from_bytes(body[24:27], "little"), 1 + int.from_bytes(body[27:30], "little"))
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", body, 21)
        return ImageFormat("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 26)
        return ImageFormat("webp", width & 0x3FFF, height & 0x3FFF)
    return None


def _jpeg(body: bytes) -> ImageFormat | None:
    at, parts = 2, iter(range(_MOST_PARTS))
    while True:
        _count_part(parts)
        if body[at] != 0xFF:
            return None
        marker = body[at + 1]
        if marker == 0xFF:  # a fill byte before a marker
            at += 1
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", body, at + 5)
            return ImageFormat("jpeg", width, height)
        elif marker in _JPEG_ALONE:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", body, at + 2)
            if length < 2:
                return None
            at += 2 + length

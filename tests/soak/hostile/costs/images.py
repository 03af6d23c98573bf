"""Images that cost much: each format at the limits of the settings, long headers, and odd spellings of an address."""

from __future__ import annotations

import base64
import functools
import io
import random
import struct
import zlib
from collections.abc import Callable, Collection
from typing import Any

from PIL import Image

from synth.inference.settings import InferenceSettings
from tests.soak.hostile.costs.chats import Case

_SETTINGS = InferenceSettings()
_PNG = b"\x89PNG\r\n\x1a\n"
#: Bytes of a request beside its images.
_AROUND = 2048
_FRAMES = 300


def image_chats(rng: random.Random, only: Collection[str] = ()) -> list[Case]:
    """Chats that show images of the largest size, number and most spellings of an address. only: these, if any."""
    pixels, size = _SETTINGS.max_image_pixels, _SETTINGS.max_request_bytes - _AROUND
    side, room = int(pixels**0.5), _SETTINGS.max_image_bytes - 64
    small = _data(png(32, 32 + rng.randrange(32)))
    # What is made only if it is needed: to compress the largest images takes seconds.
    addresses: dict[str, Callable[[], list[str]]] = {
        "the largest image": lambda: [_data(png(side, side))],
        "an image above the limit": lambda: [_data(png(side + 1, side + 1))],
        "a wide image": lambda: [_data(png(pixels, 1))],
        "the most bytes": lambda: [_data(png(64, 64, junk=_SETTINGS.max_image_bytes - 4096))],
        "several largest images": lambda: [_data(png(side, side - i)) for i in range(1, 5)],
        **{f"the largest {kind}": functools.partial(_one, kind, side) for kind in ("jpeg", "webp", "gif")},
        "the largest transparent image": lambda: [_data(picture("png", side, "RGBA"))],
        "the largest image of 16 bits": lambda: [_data(picture("png", side, "I;16"))],
        **{f"an animated {kind}": functools.partial(_animated, kind) for kind in ("gif", "webp", "png")},
        "a JPEG of fill bytes": lambda: [_data(b"\xff\xd8\xff" + b"\xff" * room)],
        "a JPEG of empty segments": lambda: [_data(b"\xff\xd8" + b"\xff\xe0\0\x02" * (room // 4))],
        "a GIF of small blocks": lambda: [_data(b"GIF89a\x01\0\x01\0\0\0\0!\xfe" + b"\x01a" * (room // 2))],
        "a GIF of extensions": lambda: [_data(b"GIF89a\x01\0\x01\0\0\0\0" + b"!\xfe\0" * (room // 3))],
        "many different images": lambda: [_data(png(32, 32 + i)) for i in range(500)],
        "many images": lambda: [small] * min(_SETTINGS.max_request_values // 8, size // (len(small) + 60)),
        "parameters": lambda: [small.replace(";base64", ";a=b" * (size // 8) + ";base64")],
        "percent signs": lambda: ["data:image/png," + "%00" * (size // 3)],
        "percent signs and base64": lambda: ["data:image/png;base64," + "%41" * (size // 3)],
        "spaces": lambda: [small.replace(",", "," + " " * (size // 2))],
        "padding": lambda: ["data:image/png;base64,AA" + "=" * size],
        "no base64": lambda: ["data:image/png;base64," + "*" * size],
        "a long address": lambda: ["http://127.0.0.2/" + "a/../" * (size // 5)],
        "a long host": lambda: ["http://" + "a." * (size // 2) + "invalid/"],
    }
    return [(name, {"messages": [_showing(urls())]}) for name, urls in addresses.items() if not only or name in only]


def _one(kind: str, side: int) -> list[str]:
    return [_data(picture(kind, side, "RGB"))]


def _animated(kind: str) -> list[str]:
    frames = [Image.new("RGB", (64, 64), (i % 256, i // 256, 0)) for i in range(_FRAMES)]
    out = io.BytesIO()
    frames[0].save(out, kind, save_all=True, append_images=frames[1:])
    return [_data(out.getvalue())]


@functools.cache
def picture(kind: str, side: int, mode: str) -> bytes:
    """A square image of one colour."""
    out = io.BytesIO()
    Image.new(mode, (side, side)).save(out, kind)
    return out.getvalue()


def _showing(urls: list[str]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}


@functools.cache
def png(width: int, height: int, *, junk: int = 0) -> bytes:
    """A grey PNG of this size with `junk` bytes of random text in it: what compresses to little decodes to much."""
    pack = zlib.compressobj(9)
    row, body = b"\0" * (width + 1), bytearray()
    for _ in range(height):
        body += pack.compress(row)
    body += pack.flush()
    beside = _chunk(b"tEXt", b"a\0" + random.Random(junk).randbytes(junk)) if junk else b""
    header = struct.pack(">II", width, height) + b"\x08\0\0\0\0"
    return _PNG + _chunk(b"IHDR", header) + beside + _chunk(b"IDAT", bytes(body)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _data(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()

"""What an image is, by the bytes that it begins with."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.images.format import ImageFormat, NotAnImage, read_image_format
from tests.image_server import GIF, PNG

_APP0 = b"\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
_NO_TABLE = b"GIF89a\x01\0\x01\0\0\0\0"
JPEG = b"\xff\xd8" + _APP0 + b"\xff\xff\xc2\0\x11\x08\0\x30\0\x40\x03"


def webp(chunk: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + chunk + b"\0\0\0\0" + body


LOSSY = webp(b"VP8 ", b"\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", 64, 48))
LOSSLESS = webp(b"VP8L", b"\x2f" + struct.pack("<I", 63 | 47 << 14))
EXTENDED = webp(b"VP8X", b"\0\0\0\0" + (63).to_bytes(3, "little") + (47).to_bytes(3, "little"))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (PNG, ImageFormat("png", 64, 48)),
        (GIF, ImageFormat("gif", 3, 2)),
        (JPEG, ImageFormat("jpeg", 64, 48)),
        (LOSSY, ImageFormat("webp", 64, 48)),
        (LOSSLESS, ImageFormat("webp", 64, 48)),
        (EXTENDED, ImageFormat("webp", 64, 48)),
    ],
)
def test_an_image_is_known_by_its_header(body: bytes, found: ImageFormat):
    assert read_image_format(body) == found


@pytest.mark.parametrize("whole", [PNG, GIF, JPEG, LOSSY, LOSSLESS, EXTENDED, b"\xff\xd8\xff\xe0\0\0", b"\xff\xd8\xff"])
def test_a_header_that_is_cut_off_is_no_image(whole: bytes):
    for end in range(min(len(whole), 10)):
        with pytest.raises(NotAnImage):
            read_image_format(whole[:end])


@given(st.sampled_from([PNG[:12], GIF[:6], JPEG[:3], LOSSY[:12], EXTENDED[:16], b""]), st.binary(max_size=60))
def test_any_bytes_are_an_image_or_none(begin: bytes, rest: bytes):
    try:
        found = read_image_format(begin + rest)
    except NotAnImage:
        return
    assert found.width > 0
    assert found.height > 0


def test_a_gif_is_as_large_as_its_first_frame_makes_it():
    """A screen of 3×2 says nothing of the frame, and decoders make room for it."""
    large = bytearray(GIF)
    at = GIF.index(b"\x2c")
    large[at + 5 : at + 9] = struct.pack("<HH", 4000, 3000)
    assert read_image_format(bytes(large)) == ImageFormat("gif", 4000, 3000)
    with pytest.raises(NotAnImage):
        read_image_format(GIF[:13] + b"\x3b")


@pytest.mark.parametrize(
    ("begins", "part"),
    [
        (b"\xff\xd8\xff", b"\xff"),
        (b"\xff\xd8", b"\xff\xe0\0\x02"),
        (_NO_TABLE + b"!\xfe", b"\x01a"),
        (_NO_TABLE, b"!\xfe\0"),
    ],
)
def test_a_header_of_millions_of_parts_is_refused_in_little_time(begins: bytes, part: bytes):
    body, began = begins + part * (10_000_000 // len(part)), time.process_time()
    with pytest.raises(NotAnImage, match="more than 16,384 parts"):
        read_image_format(body)
    assert time.process_time() - began < 0.1


def test_a_header_of_some_hundred_parts_is_read():
    comment = b"!\xfe" + b"\x01a" * 500 + b"\0"
    assert read_image_format(GIF[:19] + comment + GIF[19:]) == read_image_format(GIF)
    jpeg = JPEG[:2] + _APP0 * 500 + JPEG[2:]
    assert read_image_format(jpeg) == ImageFormat("jpeg", 64, 48)

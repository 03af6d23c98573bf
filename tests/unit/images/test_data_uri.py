"""Data URIs in the spellings that clients write."""

from __future__ import annotations

import base64
import textwrap
from urllib.parse import quote, quote_from_bytes

import httpx
import pytest

from synth.images.format import ImageRefused
from synth.images.source import ImageLimits, read_image

#: Each character of both alphabets, and a length that needs padding.
BODY = bytes(range(256)) * 3 + b"\xff\xef\xbe\xfb"
TEXT = base64.b64encode(BODY).decode()

SPELLINGS = {
    "png": f"data:image/png;base64,{TEXT}",
    "no subtype": f"data:image;base64,{TEXT}",
    "no media type": f"data:;base64,{TEXT}",
    "octets": f"data:application/octet-stream;base64,{TEXT}",
    "charset": f"data:image/jpeg;charset=utf-8;base64,{TEXT}",
    "a name": f"data:image/jpeg; name=a.jpg ;base64,{TEXT}",
    "upper case": f"DATA:IMAGE/PNG;BASE64,{TEXT}",
    "lines": "data:image/png;base64," + "\n".join(textwrap.wrap(TEXT, 76)),
    "lines of mail": "data:image/png;base64,\r\n" + "\r\n".join(textwrap.wrap(TEXT, 76)) + "\r\n",
    "blanks and tabs": "  data:image/png;base64, " + " \t".join(textwrap.wrap(TEXT, 40)),
    "url-safe": "data:image/png;base64," + base64.urlsafe_b64encode(BODY).decode(),
    "url-safe without padding": "data:image/png;base64," + base64.urlsafe_b64encode(BODY).decode().rstrip("="),
    "no padding": f"data:image/png;base64,{TEXT.rstrip('=')}",
    "percent signs in base64": f"data:image/png;base64,{quote(TEXT, safe='')}",
    "percent signs alone": f"data:image/png,{quote_from_bytes(BODY)}",
}


async def read(address: str, **limits: int) -> bytes:
    async with httpx.AsyncClient() as client:
        return await read_image(address, client, ImageLimits(**limits))


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_data_uri_is_read_in_every_spelling(spelling: str):
    assert await read(SPELLINGS[spelling]) == BODY


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("data:image/png;base64,!!!!", "not base64"),
        ("data:image/png;base64,A", "not base64"),
        ("data:image/png;base64,é", "not base64"),
        ("data:text/plain,hello", "without base64"),
        ("data:image/png;base64", "expected an https"),
        (TEXT, "expected an https"),
    ],
)
async def test_what_is_no_data_uri_is_refused_with_the_reason(address: str, reason: str):
    with pytest.raises(ImageRefused, match=reason):
        await read(address)


@pytest.mark.parametrize("spelling", ["png", "lines", "percent signs alone"])
async def test_the_limit_is_of_the_decoded_bytes(spelling: str):
    assert await read(SPELLINGS[spelling], size=len(BODY)) == BODY
    with pytest.raises(ImageRefused, match="more than"):
        await read(SPELLINGS[spelling], size=len(BODY) - 1)

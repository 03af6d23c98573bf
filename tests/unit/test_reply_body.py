"""The body of an answer from outside, compressed or not, to a limit."""

from __future__ import annotations

import asyncio
import functools
import gzip
import os
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from synth.outbound.reply_body import ReplyTooLarge, ReplyUndecodable, read_body

TEXT = b'{"metrics": {"outcome_score": 0.5}}' * 100


def deflated(data: bytes, window: int) -> bytes:
    compressor = zlib.compressobj(wbits=window)
    return compressor.compress(data) + compressor.flush()


async def read(body: bytes, encoding: str | None, *, limit: int = 1 << 20, piece: int = 1000) -> bytes:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), piece):
            yield body[at : at + piece]

    headers = {} if encoding is None else {"content-encoding": encoding}
    async with asyncio.timeout(60):
        return await read_body(httpx.Response(200, headers=headers, content=pieces()), limit)


#: Of the same bytes at any time: a test's name holds them.
gzipped = functools.partial(gzip.compress, mtime=0)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (TEXT, None),
        (TEXT, "identity"),
        (gzipped(TEXT), "gzip"),
        (gzipped(TEXT), "GZip, identity"),
        (gzipped(TEXT[:500]) + gzipped(TEXT[500:]) + b"\0" * 9, "x-gzip"),
        (deflated(TEXT, zlib.MAX_WBITS), "deflate"),
        (deflated(TEXT, -zlib.MAX_WBITS), "deflate"),
    ],
)
async def test_an_answer_is_read_however_it_is_compressed(body: bytes, encoding: str | None, piece: int):
    assert await read(body, encoding, piece=piece) == TEXT


async def test_an_answer_without_a_body_is_empty_whatever_its_encoding():
    assert await read(b"", "gzip") == b""


async def test_an_answer_of_many_megabytes_is_read_whole():
    data = os.urandom(1 << 20) + b"\0" * (9 << 20) + os.urandom(1 << 20)
    assert await read(gzip.compress(data), "gzip", limit=len(data), piece=1 << 16) == data


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        (TEXT, "br", "Content-Encoding 'br'; expected gzip, deflate or none"),
        (TEXT, "zstd", "'zstd'"),
        (gzipped(gzipped(TEXT)), "gzip, gzip", "'gzip, gzip'"),
        (TEXT, "gzip", "not the gzip that its Content-Encoding declares"),
        (TEXT, "deflate", "not the deflate that"),
        (gzipped(TEXT)[:-9], "gzip", "it ends early"),
        (gzipped(TEXT) + b"more", "gzip", "not the gzip that"),
    ],
)
async def test_an_answer_that_cannot_be_decompressed_names_its_encoding(body: bytes, encoding: str, expected: str):
    with pytest.raises(ReplyUndecodable, match=expected):
        await read(body, encoding)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", None])
async def test_the_limit_holds_before_and_after_decompression(encoding: str | None):
    data = b"[" * (64 << 20) if encoding else os.urandom(1 << 20)
    body = {"gzip": gzip.compress, "deflate": zlib.compress}.get(encoding or "", bytes)(data)
    tracemalloc.start()
    with pytest.raises(ReplyTooLarge, match="larger than 100000 bytes"):
        await read(body, encoding, limit=100_000, piece=1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    exact = os.urandom(1000)
    assert await read(gzip.compress(exact), "gzip", limit=1100) == exact
    with pytest.raises(ReplyTooLarge):
        await read(gzip.compress(exact), "gzip", limit=999)

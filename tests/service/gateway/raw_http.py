"""Requests as bytes on a socket: what no HTTP client would send."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

#: A machine that many tests share may be slow; whatever is bounded here is bounded by a few seconds.
PATIENCE_S = 60


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a gateway."""
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """All that is answered until the connection ends, which it must."""
    answer = bytearray()
    with suppress(ConnectionResetError):
        while piece := await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S):
            answer += piece
    return bytes(answer)


async def exchange(url: str, sent: bytes) -> bytes:
    """What comes back for these bytes, after which nothing more is sent, until the server ends the connection."""
    reader, writer = await connect(url)
    try:
        writer.write(sent)
        with suppress(ConnectionError):
            await writer.drain()
        return await read_to_end(reader)
    finally:
        writer.close()


def status_of(answer: bytes) -> int:
    """The status of the first answer; 0 where there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0

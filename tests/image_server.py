"""Images on a real socket, by path; and what their server was asked."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


#: A black picture of 64×48 pixels.
PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">II", 64, 48) + b"\x08\x02\0\0\0")
    + _chunk(b"IDAT", zlib.compress(bytes(48 * (1 + 64 * 3))))
    + _chunk(b"IEND", b"")
)
GIF = bytes.fromhex("474946383761030002008000000000000000002c00000000030002000008060001081c1810003b")

Answer = tuple[int, bytes] | tuple[int, bytes, str]
Route = Callable[[int], Answer | Awaitable[Answer]]


def data_uri(body: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(body).decode()}"


@dataclass
class ImageServer:
    """url: where it listens. asked: the paths, in order. at_once: the most requests that were open at one time."""

    url: str
    asked: list[str] = field(default_factory=list[str])
    open: int = 0
    at_once: int = 0


@asynccontextmanager
async def images(routes: dict[str, Route | Answer]) -> AsyncIterator[ImageServer]:
    """A server of these paths; a route is called with the number of the request to its path, from 1.

    An answer is a status, a body, and where to go for a redirect.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        server.asked.append(path)
        server.open += 1
        server.at_once = max(server.at_once, server.open)
        try:
            route = routes.get(path, (404, b""))
            found = route(server.asked.count(path)) if callable(route) else route
            status, body, *location = await found if isinstance(found, Awaitable) else found
            to = f"location: {location[0]}\r\n" if location else ""
            head = f"HTTP/1.1 {status} X\r\n{to}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        except ConnectionError:
            pass  # the client has seen enough
        finally:
            server.open -= 1
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = ImageServer(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    try:
        yield server
    finally:
        listening.close()

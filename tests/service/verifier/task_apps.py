"""Task apps that misbehave on the wire, each in its own way: a server on a real socket with scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    path: str
    headers: dict[str, str]


Answer = tuple[int, bytes]
Script = Callable[[Call], Answer | Awaitable[Answer]]


@dataclass
class ScriptedApp:
    """url: where it listens. calls: what it was asked, in order."""

    url: str
    calls: list[Call] = field(default_factory=list[Call])


def good(call: Call) -> Answer:
    """What an app that keeps the contract answers."""
    if call.path == "/health":
        return 200, b'{"healthy": true}'
    return 200, json.dumps({"taskset": {"name": "math", "splits": ["train"]}}).encode()


def plays(*names: str) -> Script:
    """A good app that lists these environments."""

    def script(call: Call) -> Answer:
        if call.path == "/health":
            return good(call)
        return 200, json.dumps({"taskset": {"name": "games"}, "env_names": names}).encode()

    return script


def opened_by(*keys: str, status: int = 400) -> Script:
    """A good app that wants one of these keys, in all three headers."""

    def script(call: Call) -> Answer:
        sent = {call.headers.get("x-api-key"), call.headers.get("x-api-keys")}
        sent.add(call.headers.get("authorization", "").removeprefix("Bearer "))
        if len(sent) == 1 and sent & set(keys):
            return good(call)
        return status, b'{"detail": {"error": {"code": "unauthorised"}}}'

    return script


async def hang(call: Call) -> Answer:
    await asyncio.Event().wait()
    return 200, b""


@asynccontextmanager
async def scripted(script: Script, *, path: str = "") -> AsyncIterator[ScriptedApp]:
    """The app, listening on loopback."""
    app = ScriptedApp("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            # Keys are case-sensitive: only the names of headers are lowered.
            headers |= {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
            call = Call(head[0].split(" ")[1].removeprefix(path), headers)
            app.calls.append(call)
            answer = script(call)
            status, body = answer if isinstance(answer, tuple) else await answer
            location = "location: http://127.0.0.1:1/\r\n" if status in (301, 302, 307) else ""
            writer.write(
                f"HTTP/1.1 {status} X\r\n{location}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            )
            writer.write(body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    app.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    try:
        yield app
    finally:
        server.close()

"""What the platform is led to: a task app and an image server that answer as they like, and what nobody may reach."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx

from synth.taskapp.llm import completions_url
from tests.soak.hostile.addresses import forbidden_addresses
from tests.soak.hostile.answers import answer

#: The operator has allowed this address, and no other one of this machine.
ALLOWED = "127.0.0.2"
_GOOD = {
    "/health": {"healthy": True},
    "/task_info": {"taskset": {"name": "hostile"}, "env_names": ["math"]},
}


@dataclass
class Trap:
    """Listens where nobody may connect. caught: the addresses of this machine that were connected to."""

    port: int
    caught: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    """A listener at every address of this machine."""
    found = Trap(0)

    async def catch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.caught.append(str(writer.get_extra_info("sockname")[0]))
        writer.close()

    async with AsyncExitStack() as listening:
        four = await listening.enter_async_context(await asyncio.start_server(catch, "0.0.0.0"))
        found.port = four.sockets[0].getsockname()[1]
        # A machine may have no IPv6.
        with suppress(OSError):
            await listening.enter_async_context(await asyncio.start_server(catch, "::1", found.port))
        yield found


@dataclass
class HostileServer:
    """url: its base; `/verify` and `/play` below it are task apps, `/image/…` are images. answers: hostile ones.

    costly: what every POST, and each question of the verifier, is answered with, if set.
    """

    url: str
    answers: int = 0
    costly: bytes | None = None


@asynccontextmanager
async def hostile_server(rng: random.Random, trapped: int, *, hangs: bool = True) -> AsyncIterator[HostileServer]:
    """The server. trapped: the port of the trap, where its redirects lead. hangs: whether some answers do not end."""
    inside = forbidden_addresses(trapped)
    model = httpx.AsyncClient(timeout=20, trust_env=False)
    limit = asyncio.Semaphore(8)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client goes away in the middle of most of it, and the server's end cancels what hangs.
        gone = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, asyncio.CancelledError)
        with suppress(*gone):
            async with asyncio.timeout(60):
                method, path, body = await _read(reader)
                checked = path.startswith("/play") and method == "GET"
                if server.costly is not None and not checked:
                    if method == "POST":
                        with suppress(httpx.HTTPError):
                            await _call_model(model, body)
                    server.answers += 1
                    writer.write(server.costly)
                    await writer.drain()
                    writer.close()
                    return
                if checked or (path == "/verify/health" and rng.random() < 0.5):
                    writer.write(_good(path))
                    await writer.drain()
                    return
                if method == "POST" and rng.random() < 0.6:
                    # An answer without a call of the model is refused at once, and the rest of it is not read.
                    async with limit:
                        with suppress(httpx.HTTPError):
                            await _call_model(model, body)
                server.answers += 1
                await answer(rng, writer, inside=inside, hangs=hangs)
        with suppress(OSError):
            writer.close()

    async with await asyncio.start_server(serve, ALLOWED) as listening, model:
        server = HostileServer(f"http://{ALLOWED}:{listening.sockets[0].getsockname()[1]}")
        yield server


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    method, path, _ = head.split(b" ", 2)
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length:" in line), 0)
    return method.decode(), path.decode(), await reader.readexactly(length)


def _good(path: str) -> bytes:
    body = json.dumps(_GOOD["/" + path.partition("?")[0].rpartition("/")[2]]).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body


async def _call_model(http: httpx.AsyncClient, body: bytes) -> None:
    config = json.loads(body)["policy"]["config"]
    asked = {"model": config["model"], "messages": [{"role": "user", "content": "2+2?"}], "max_tokens": 4}
    await http.post(completions_url(config["inference_url"]), json=asked)

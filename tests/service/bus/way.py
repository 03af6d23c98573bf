"""The way of one connection to the bus, which a test looks at and breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from synth.bus.connection import Connection, connect
from synth.runtime.settings import ServiceSettings


class Way:
    """Passes on what either side says. Where it is told not to, what was said is lost, and the connection with it."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def says(self, data: bytes) -> bool:
        """Whether this reaches the bus."""
        return True

    async def hears(self, data: bytes) -> bool:
        """Whether this reaches the client."""
        return True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_bus, to_bus = await asyncio.open_connection(self._host, self._port)

        async def speak() -> None:
            while (data := await reader.read(65536)) and await self.says(data):
                to_bus.write(data)

        async def hear() -> None:
            while (data := await from_bus.read(65536)) and await self.hears(data):
                writer.write(data)

        both = [asyncio.create_task(speak()), asyncio.create_task(hear())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in both:
            one.cancel()
        to_bus.close()
        writer.close()


_W = TypeVar("_W", bound=Way)


@asynccontextmanager
async def connection_by(
    kind: type[_W], settings: ServiceSettings, service: str
) -> AsyncIterator[tuple[_W, Connection]]:
    """A service's connection, and the way of this kind that it goes."""
    host, port = settings.nats_url.removeprefix("nats://").split(":")
    way = kind(host, int(port))
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    bus = await connect(settings.model_copy(update={"nats_url": url}), service)
    try:
        yield way, bus
    finally:
        await bus.close()
        server.close()

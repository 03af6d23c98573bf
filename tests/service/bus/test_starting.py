"""A service is healthy once each of its parts does its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.rpc import VALIDATE, ValidateJob, ValidationVerdict, ask, serve_questions
from synth.events import JobCreated
from synth.service import Service

QUESTION = ValidateJob(org="org_1", created=JobCreated(config="", config_name="x.toml", body_sha256="0"))


async def test_a_service_is_not_healthy_before_each_of_its_parts_has_begun(settings_of, bus_as, blobs: BlobStore):
    settings = settings_of("validator")
    service = Service("validator", settings, settings.secrets_of("validator"), await bus_as("validator"), blobs, 1)
    first, second = service.starting(), service.starting()
    transport = httpx.ASGITransport(Starlette(routes=service.observability()))
    async with httpx.AsyncClient(transport=transport, base_url="http://validator") as http:
        for begun in (service.ready, first, second):
            reply = await http.get("/healthz")
            assert (reply.status_code, reply.json()["unhealthy"]) == (503, {"start": "not ready yet"})
            begun.set()
        assert (await http.get("/healthz")).json()["status"] == "healthy"


class Holding:
    """A way to the bus. open: whether what is said to the bus arrives."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.open = asyncio.Event()
        self.open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_bus, to_bus = await asyncio.open_connection(self._host, self._port)

        async def answers() -> None:
            while data := await from_bus.read(65536):
                writer.write(data)
            writer.close()

        answering = asyncio.create_task(answers())
        while data := await reader.read(65536):
            await self.open.wait()
            to_bus.write(data)
        answering.cancel()
        to_bus.close()
        writer.close()


@pytest.fixture
async def held(settings_of, bus_admin) -> AsyncIterator[tuple[Holding, Connection]]:
    """A validator's connection, and the way that it goes."""
    settings = settings_of("validator")
    host, port = settings.nats_url.removeprefix("nats://").split(":")
    way = Holding(host, int(port))
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    bus = await connect(settings.model_copy(update={"nats_url": f"nats://127.0.0.1:{address[1]}"}), "validator")
    yield way, bus
    way.open.set()
    await bus.close()
    server.close()


async def test_who_answers_questions_has_begun_once_they_reach_it(held, bus_as):
    way, bus = held
    stop, started = asyncio.Event(), asyncio.Event()

    async def answer(question: ValidateJob) -> ValidationVerdict:
        return ValidationVerdict(problems=[])

    way.open.clear()
    more = {"max_concurrent": 1, "within": 5, "started": started}
    serving = asyncio.create_task(serve_questions(bus, VALIDATE, ValidateJob, answer, stop, **more))
    await asyncio.wait([serving], timeout=0.3)
    assert not started.is_set()
    way.open.set()
    await asyncio.wait_for(started.wait(), 20)
    verdict = await ask(await bus_as("gateway"), VALIDATE, QUESTION, ValidationVerdict, within=5)
    assert verdict.problems == []
    stop.set()
    await asyncio.wait_for(serving, 20)

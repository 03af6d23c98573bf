"""A service is healthy once each of its parts does its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from synth.blobs import BlobStore
from synth.bus.access.broker import BusBroker
from synth.bus.connection import Connection
from synth.bus.delivery import make_broker, on_event, serve_events
from synth.bus.rpc import VALIDATE, ValidateJob, ValidationVerdict, ask, serve_questions
from synth.events import JobCreated
from synth.events.catalogue import Role
from synth.runtime.off_loop import OffLoop
from synth.service import Service
from tests.service.bus.own_server import OwnServer
from tests.service.bus.test_delivery import Handler, submit, well
from tests.service.bus.way import Way, connection_by

QUESTION = ValidateJob(org="org_1", created=JobCreated(config="", config_name="x.toml", body_sha256="0"))


async def test_a_service_is_not_healthy_before_each_of_its_parts_has_begun(settings_of, bus_as, blobs: BlobStore):
    settings = settings_of("validator")
    service = Service(
        "validator", settings, settings.secrets_of("validator"), await bus_as("validator"), blobs, OffLoop(), 1
    )
    first, second = service.starting(), service.starting()
    transport = httpx.ASGITransport(Starlette(routes=service.observability()))
    async with httpx.AsyncClient(transport=transport, base_url="http://validator") as http:
        for begun in (service.ready, first, second):
            reply = await http.get("/healthz")
            assert (reply.status_code, reply.json()["unhealthy"]) == (503, {"start": "not ready yet"})
            begun.set()
        assert (await http.get("/healthz")).json()["status"] == "healthy"


class Holding(Way):
    """open: whether what is said to the bus arrives."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.open = asyncio.Event()
        self.open.set()

    async def says(self, data: bytes) -> bool:
        return await self.open.wait()


async def test_who_answers_questions_has_begun_once_they_reach_it(settings_of, bus_as):
    stop, started, asked = asyncio.Event(), asyncio.Event(), 0

    async def answer(question: ValidateJob) -> ValidationVerdict:
        nonlocal asked
        asked += 1
        return ValidationVerdict(problems=[])

    async with connection_by(Holding, settings_of("validator"), "validator") as (way, bus):
        way.open.clear()
        questions = serve_questions(
            bus, VALIDATE, ValidateJob, answer, stop, max_concurrent=1, within=5, started=started
        )
        serving = asyncio.create_task(questions)
        await asyncio.wait([serving], timeout=0.3)
        assert not started.is_set()
        way.open.set()
        await asyncio.wait_for(started.wait(), 20)
        verdict = await ask(await bus_as("gateway"), VALIDATE, QUESTION, ValidationVerdict, within=5)
        assert verdict.problems == []
        # By whoever has stolen the credential of one who may ask.
        await (await bus_as("gateway")).nc.publish(VALIDATE, msgspec.json.encode(QUESTION))
        verdict = await ask(await bus_as("gateway"), VALIDATE, QUESTION, ValidationVerdict, within=5)
        assert asked == 2
        stop.set()
        await asyncio.wait_for(serving, 20)


async def a_validator(own: OwnServer, handler: Handler) -> tuple[BusBroker, Connection]:
    bus = await own.connect("validator")
    broker = make_broker(own.settings("validator"), "validator")
    on_event(broker, bus, Role.VALIDATOR, JobCreated, handler)
    return broker, bus


def before_start(subscriber: Any, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `act` be called each time that the service begins to take from this queue."""
    begin = subscriber.start

    async def act_and_begin() -> None:
        act()
        await begin()

    monkeypatch.setattr(subscriber, "start", act_and_begin)


@pytest.mark.parametrize("queues", [0, 1])
async def test_a_start_that_meets_the_end_of_the_server_goes_on(own: OwnServer, queues: int, monkeypatch):
    """The server ends when the service takes from so many of its two queues."""
    await own.provision()
    handler = Handler(well, enough=1)
    broker, bus = await a_validator(own, handler)
    starts = 0

    def end_the_server_once() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            # The client knows nothing of it yet: its request is lost.
            own.kill()
            own.start()

    before_start(broker.subscribers[queues], end_the_server_once, monkeypatch)
    stop, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve_events(broker, bus, Role.VALIDATOR, stop, started))
    begun = asyncio.create_task(started.wait())
    await asyncio.wait([serving, begun], timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert begun.done()
    assert starts > 1
    await submit(own, "a")
    await asyncio.wait_for(handler.enough.wait(), 15)
    stop.set()
    await asyncio.wait_for(serving, 15)
    assert handler.names == ["a"]


async def test_a_service_that_is_told_to_end_in_its_start_waits_for_no_bus(own: OwnServer, monkeypatch):
    """The server is away when the service takes from one of its two queues."""
    await own.provision()
    broker, bus = await a_validator(own, Handler(well, enough=1))
    reached = asyncio.Event()

    def end_the_server() -> None:
        own.kill()
        reached.set()

    before_start(broker.subscribers[1], end_the_server, monkeypatch)
    stop, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve_events(broker, bus, Role.VALIDATOR, stop, started))
    await asyncio.wait_for(reached.wait(), 10)
    stop.set()
    # A request has five seconds for its answer.
    await asyncio.wait_for(serving, 4)
    assert not started.is_set()

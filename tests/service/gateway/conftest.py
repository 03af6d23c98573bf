"""Gateways that run inside the test, on the real bus, behind real HTTP."""

from __future__ import annotations

import asyncio
import copy
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import State
from starlette.routing import BaseRoute

from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.kv.secrets import SecretStore
from synth.gateway import app as gateway_app
from synth.gateway.app import setup
from synth.gateway.settings import GatewaySettings
from synth.http_server.connection import http_config
from synth.keys import new_api_key
from synth.runtime.off_loop import OffLoop
from synth.service import Service
from tests.service.own_bus import Bus


class Server(uvicorn.Server):
    """One that leaves the test's signals alone."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def listen() -> socket.socket:
    """A listening socket; asyncio turns Nagle's delay of 40 ms off only where the protocol is said."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    return listening


@dataclass
class Running:
    """A gateway in this process."""

    service: Service
    server: uvicorn.Server
    tasks: list[asyncio.Task[None]]

    async def stop(self) -> None:
        self.service.stop.set()
        await self.service.drain()
        self.server.should_exit = True
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10)
        await self.service.close()
        await self.service.bus.close()


async def wait_until_started(http: httpx.AsyncClient) -> None:
    """Return when a gateway has started, and has read the queue of jobs: it is unhealthy before."""
    async with asyncio.timeout(30):
        unhealthy = {"start"}
        while unhealthy & {"start", "queue"}:
            unhealthy = (await http.get("/healthz")).json()["unhealthy"].keys()


@pytest.fixture(scope="session", autouse=True)
def routes_are_built_once() -> Iterator[None]:
    """Share the routes of all gateways: to build them takes longer than most tests."""
    described = gateway_app.describe_api()

    def describe(observability: Sequence[BaseRoute] = ()) -> FastAPI:
        app = copy.copy(described)
        app.state, app.user_middleware, app.middleware_stack = State({**described.state._state}), [], None
        app.router = copy.copy(described.router)
        app.router.routes = [*observability, *described.router.routes]
        app.router.middleware_stack = app.router.app  # it was bound to the router that was copied
        return app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_app, "describe_api", describe)
        yield


@pytest.fixture
async def start_gateway(settings_of, bus_admin, tmp_path: Path) -> AsyncIterator:
    """Starts a gateway with these settings; ended at the end of the test."""
    started: list[Running] = []

    async def start(**changes: object) -> Running:
        base = settings_of("gateway").model_dump()
        path = tmp_path / f"gateway-{len(started)}.db"
        # A busy machine leaves a job silent for seconds: a heartbeat would stand among the events that a test compares.
        quiet = {"read_model_path": path, "log_level": "error", "heartbeat_after_s": 3600.0}
        # Nobody takes the jobs of other tests, which the watchdog would say in its time.
        quiet["waiting_after_s"] = 3600.0
        quiet["projection_wait_s"] = 60.0  # It reads what all tests before it wrote.
        settings = GatewaySettings(**base | quiet | changes)
        bus: Connection = await connect(settings, "gateway")
        listening = listen()
        service = Service(
            name="gateway",
            settings=settings,
            secrets=settings.secrets_of("gateway"),
            bus=bus,
            blobs=BlobStore.open(settings.blob_url),
            off_loop=OffLoop(settings),
            port=listening.getsockname()[1],
        )
        app = await setup(service)
        server = Server(http_config(app, settings))
        tasks = [
            asyncio.create_task(server.serve(sockets=[listening])),
            asyncio.create_task(service.supervise()),
        ]
        started.append(Running(service, server, tasks))
        # It answers nobody before it has read the log, which is that of all tests of a session.
        async with httpx.AsyncClient(base_url=service.url, timeout=65) as http:
            await http.get("/api/jobs")
            await wait_until_started(http)
        return started[-1]

    yield start
    for running in started:
        if not running.service.stop.is_set():
            await running.stop()


@dataclass
class Client:
    """A user of an organisation of its own."""

    http: httpx.AsyncClient
    org: str
    key: str

    async def submit(self, **body: object) -> dict:
        reply = await self.http.post("/api/jobs", json={"config": "[job]", "config_name": "rl.toml"} | body)
        assert reply.status_code == 201, reply.text
        return reply.json()


@pytest.fixture
async def client_of(bus_as) -> AsyncIterator:
    """A new user of this gateway (or the one with this key)."""
    opened: list[httpx.AsyncClient] = []

    async def make(running: Running, key: str | None = None) -> Client:
        key = key or new_api_key()
        owner = await SecretStore(await bus_as("gateway"), running.service.secrets).ensure_api_key(key)
        headers = {"Authorization": f"Bearer {key}"}
        opened.append(httpx.AsyncClient(base_url=running.service.url, headers=headers, timeout=20))
        return Client(opened[-1], owner.org, key)

    yield make
    for http in opened:
        await http.aclose()


@pytest.fixture
async def user(start_gateway, client_of) -> Client:
    """A user of a gateway."""
    return await client_of(await start_gateway())


@pytest.fixture
def own_bus(tmp_path: Path) -> Iterator[Bus]:
    """A nats-server of this test alone."""
    bus = Bus(tmp_path)
    bus.start()
    yield bus
    assert bus.process is not None
    bus.process.kill()
    bus.process.wait(10)

"""The base of every `synthd NAME` process: connected, observable over HTTP, and drained on SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.history.store_identity import open_store
from synth.bus.server.embedded import free_port
from synth.errors import SynthError
from synth.http_server.connection import http_config
from synth.http_server.open_routes import AddressLimit, MetricsPage
from synth.loop_gaps import measure_loop_gaps
from synth.runtime import logs
from synth.runtime.environment.child_environment import hide_memory, withhold_environment
from synth.runtime.environment.unknown_settings import unknown_settings
from synth.runtime.off_loop import OffLoop
from synth.runtime.settings import ServiceSettings
from synth.runtime.startup import build_struct_types
from synth.service_secrets import ServiceSecrets

log = logs.get("service")

_STARTUP_S = 3.0
#: glibc's name of the size from which a buffer is mapped by itself, and unmapped when it is freed.
_M_MMAP_THRESHOLD = -3
_MAPPED_BYTES = 4 << 20
#: How long a thread may keep the GIL while the event loop waits for it. A request waits so at each of its steps.
_SWITCH_S = 0.0005
#: The checks whose failure a restart mends; the others pass by themselves, or need somebody to do something.
_VITAL = frozenset({"worker"})

Check = Callable[[], str | None]


@dataclass
class Service:
    """A running service: its connections and its status. A check returns its problem, or None.

    A check with the name "worker" is one whose failure a restart can fix.

    ready: set once the service is set up.
    """

    name: str
    settings: ServiceSettings
    secrets: ServiceSecrets
    bus: Connection
    blobs: BlobStore
    off_loop: OffLoop
    port: int
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    checks: dict[str, Check] = field(default_factory=dict[str, Check])
    _starts: list[asyncio.Event] = field(default_factory=list[asyncio.Event])
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _helpers: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _closings: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])

    @property
    def url(self) -> str:
        """The address that the HTTP side listens on."""
        return f"http://{self.settings.host}:{self.port}"

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the service for its whole life; one that ends before the stop, or fails, ends the process."""
        self._tasks.append(asyncio.create_task(work, name=name))

    def starting(self) -> asyncio.Event:
        """Return an event that a part sets once it works; until then the service is not healthy."""
        self._starts.append(asyncio.Event())
        return self._starts[-1]

    def add_background(self, task: asyncio.Task[None]) -> None:
        """Keep a task running beside the service's parts; a drain cancels it at once."""
        self._helpers.append(task)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call this when the service is over, after its last answer."""
        self._closings.append(close)

    def health(self) -> dict[str, str]:
        """Return the problem of each check that fails, by name; empty when all is well."""
        problems = {name: problem for name, check in self.checks.items() if (problem := check()) is not None}
        if not self.bus.nc.is_connected:
            problems["bus"] = "not connected"
        if (newer := self.bus.newer.problem()) is not None:
            problems["version"] = newer
        return problems

    def observability(self) -> list[BaseRoute]:
        """`/livez`, `/healthz`, and `/metrics` where it has no port of its own."""
        routes = [Route("/livez", self._livez), Route("/healthz", self._healthz)]
        return [*routes, *([] if self.settings.metrics_port else [self.metrics_route()])]

    def metrics_route(self) -> BaseRoute:
        """`/metrics`. On the port of the API it is for this machine alone."""
        limit = AddressLimit(self.settings.open_requests_per_s)
        return Route("/metrics", MetricsPage(limit, loopback_only=not self.settings.metrics_port).answer)

    async def _livez(self, request: Request) -> Response:
        """Answer whether the process may keep running; that it answers is most of the evidence."""
        problems = {name: problem for name, problem in self.health().items() if name in _VITAL}
        body = {"service": self.name, "status": "dead" if problems else "alive", "dead": problems, "pid": os.getpid()}
        return JSONResponse(body, status_code=503 if problems else 200)

    async def _healthz(self, request: Request) -> Response:
        problems = self.health()
        if not self.ready.is_set() or not all(started.is_set() for started in self._starts):
            problems["start"] = "not ready yet"
        status = "unhealthy" if problems else "healthy"
        body = {
            "service": self.name,
            "version": version("synthctl"),
            "status": status,
            "unhealthy": problems,
            "pid": os.getpid(),
        }
        return JSONResponse(body, status_code=503 if problems else 200)

    async def after_startup(self) -> None:
        """Wait until a cluster's start is over: work that only saves time later must not slow its services down."""
        await self.ready.wait()
        await asyncio.sleep(_STARTUP_S)

    async def supervise(self) -> None:
        """Wait for the stop, or for the first of the service's tasks to end before it."""
        # Modules and routes stay until the process ends. Going through them took the garbage collector 0.1 s each time,
        # in which nothing was answered.
        gc.freeze()
        self.ready.set()
        self.add_background(asyncio.create_task(measure_loop_gaps(self.settings.loop_tick_s), name="loop gaps"))
        stopped = asyncio.create_task(self.stop.wait())
        done, _ = await asyncio.wait([stopped, *self._tasks, *self._helpers], return_when=asyncio.FIRST_COMPLETED)
        self.stop.set()
        for task in done - {stopped}:
            if stopped in done and task.cancelled():
                continue
            task.result()
            if stopped not in done:
                log.error("a part of the service ended by itself", part=task.get_name())

    async def drain(self) -> None:
        """Wait until the service's tasks end, within the grace period; then cancel the rest."""
        for task in self._helpers:
            task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self.settings.grace_s)
            for task in late:
                log.error("did not drain in time", part=task.get_name())
                task.cancel()

    async def close(self) -> None:
        """Call the functions that `on_close` registered."""
        for close in self._closings:
            await close()


class _Server(uvicorn.Server):
    """Leaves signals to the service: its own handling would swallow the drain."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


Setup = Callable[[Service], Awaitable[ASGIApp | None]]


async def serve(name: str, settings: ServiceSettings, setup: Setup) -> None:
    """Run one service until SIGTERM or SIGINT, or until a part of it fails.

    setup: wires the service (registers checks, starts its parts with `run`) and returns its ASGI app, if it has one
    beyond `/healthz` and `/metrics`. Raises `UserError` if the service lacks a secret, or has one that could be
    guessed.
    """
    logs.configure(name, level=settings.log_level, replica=settings.replica)
    for sentence in unknown_settings(os.environ):
        log.warning("unknown setting", reason=sentence)
    secrets = settings.secrets_of(name)
    settings.work_dir.mkdir(parents=True, exist_ok=True)
    build_struct_types()
    bus = await connect(settings, name)
    service = Service(
        name=name,
        settings=settings,
        secrets=secrets,
        bus=bus,
        blobs=BlobStore.open(settings.blob_url),
        off_loop=OffLoop(settings),
        port=settings.port or free_port(),
    )
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, service.stop.set)
    try:
        await bus.schemas.wait_until_written_ones_are_declared(service.stop)
        if service.stop.is_set():
            return
        service.blobs = await open_store(bus, settings.blob_url)
        app = await setup(service) or Starlette(routes=service.observability())
        servers = [_Server(http_config(app, settings, host=settings.host, port=service.port))]
        if settings.metrics_port:
            metrics = Starlette(routes=[service.metrics_route()])
            servers.append(_Server(http_config(metrics, settings, host=settings.host, port=settings.metrics_port)))
        web = asyncio.gather(*(server.serve() for server in servers))
        log.info("service up", url=service.url, pid=os.getpid())
        try:
            await service.supervise()
        finally:
            await service.drain()
            for server in servers:
                server.should_exit = True
            await web
            await service.close()
    finally:
        await bus.close()
    log.info("service down")


def _return_large_buffers() -> None:
    """Have the memory of a large request go back to the system once it is answered.

    After the first one glibc would keep freed buffers of up to 32 MiB, in each thread's heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def run(name: str, settings: ServiceSettings, setup: Setup) -> int:
    """Run the process of one service; return its exit code."""
    import uvloop

    async def setup_without_keys(service: Service) -> ASGIApp | None:
        # The settings and the blob store have read theirs. The hub's library reads its token at each download.
        withhold_environment(keep=frozenset({"HF_TOKEN"} if settings.model_hub else ()))
        return await setup(service)

    hide_memory()
    sys.setswitchinterval(_SWITCH_S)
    _return_large_buffers()
    try:
        uvloop.run(serve(name, settings, setup_without_keys))
    except SynthError as error:
        log.error("service ends", reason=str(error))
        return 1
    return 0

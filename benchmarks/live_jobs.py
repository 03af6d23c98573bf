"""The longest time that a gateway's event loop is blocked by one step while many jobs are live.

.venv/bin/python -m benchmarks.live_jobs [--jobs 20000] [--seconds 30] [--watchers 200]. One job in ten has started, the
others wait for a validator; none appends an event. Another process lists, submits and watches meanwhile. Exit code 1:
the limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType

import httpx
import uvicorn
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.recorded import MSG_ID, encode
from synth.bus.server.embedded import ServerConfig, free_port, new_users, start, wait_healthy
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.events import JobCreated, JobStarted, JobValidated, JobVerified, ModelRef
from synth.events.catalogue import Event, subject_of
from synth.gateway.app import setup
from synth.gateway.settings import GatewaySettings
from synth.http_server.connection import http_config
from synth.ids import new_job_id
from synth.keys import new_api_key
from synth.runtime.off_loop import OffLoop
from synth.service import Service

LIMIT_MS = 50.0
_AT_ONCE = 1024
_CONFIG = "# a job file of two kilobytes\n" * 68
_READY_WITHIN_S = 300.0


@dataclass(frozen=True)
class Step:
    """One step of the event loop. cpu_s: what this thread computed in it; whole_s also counts what others took."""

    what: str
    cpu_s: float
    whole_s: float


def main() -> int:
    """Measure, print the table; exit code 1 when the loop was blocked for longer than the limit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=20_000)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--watchers", type=int, default=200)
    options.add_argument("--client", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.client:
        asyncio.run(use(*arguments.client, seconds=arguments.seconds, watchers=arguments.watchers))
        return 0
    with tempfile.TemporaryDirectory(prefix="live-jobs-") as folder:
        steps, used = asyncio.run(measure(Path(folder), arguments.jobs, arguments.seconds, arguments.watchers))
    console = Console()
    console.print(_table(steps, used, arguments.jobs))
    return int(max(step.cpu_s for step in steps) * 1e3 > LIMIT_MS)


async def measure(home: Path, jobs: int, seconds: float, watchers: int) -> tuple[list[Step], dict[str, float]]:
    """Return the steps of the gateway's loop while it starts and serves, longest first; and the client's figures."""
    config = ServerConfig(port=free_port(), http_port=free_port(), store=home / "store", users=new_users())
    server = start(config, home / "nats.conf", home / "nats.log")
    try:
        wait_healthy(config, timeout=30)
        admin = await connect(_settings(home, config, "bus"), "bus")
        await provision(admin.js, topology())
        key = new_api_key()
        settings = _settings(home, config, "gateway")
        org = (await SecretStore(admin, settings.secrets_of("gateway")).ensure_api_key(key)).org
        await _fill(admin, org, jobs)
        with _recorded_steps() as steps:
            async with _gateway(settings) as url:
                client = [sys.executable, "-m", "benchmarks.live_jobs", "--client", url, key]
                client += ["--seconds", str(seconds), "--watchers", str(watchers)]
                # Starting it is no work of the gateway: a thread does it.
                printed = (await asyncio.to_thread(subprocess.run, client, check=True, stdout=subprocess.PIPE)).stdout
        last = (await admin.js.stream_info("EVENTS")).state.last_seq
        beats = (await admin.js.stream_info("EVENTS", subjects_filter="watch.heartbeat.>")).state.subjects or {}
        await admin.close()
        used = json.loads(printed) | {"events in the log": last, "heartbeats": sum(beats.values())}
        return sorted(steps, key=lambda step: -step.cpu_s), used
    finally:
        server.terminate()
        server.wait(20)


def _settings(home: Path, config: ServerConfig, user: str) -> GatewaySettings:
    return GatewaySettings(
        nats_url=config.url,
        nats_user=user,
        nats_password=SecretStr(config.users[user]),
        blob_url=f"file:{home / 'blobs'}",
        models_dir=home / "models",
        work_dir=home / "work",
        cluster_secret=SecretStr("a secret of this benchmark"),
        replica=f"{user}-0",
        read_model_path=home / "gateway.db",
        disk_reserve_bytes=0,
        read_model_check_s=10.0,
        org_jobs_live=10**6,
        org_jobs_queued=10**6,
        org_streams=10**4,
        log_level="error",
    )


async def _fill(bus: Connection, org: str, jobs: int) -> None:
    created = JobCreated(config=_CONFIG, config_name="rl.toml", body_sha256="0", metadata={"team": "a"})
    validated = JobValidated(job={"kind": "rl", "model": "tiny"}, origins={}, warnings=[])
    begun: list[Event] = [created, validated, JobVerified(source=ModelRef(id="tiny", path="tiny"))]
    begun.append(JobStarted(attempt=1, worker="w"))
    due = [(new_job_id(), begun[: 1 if number % 10 else 4]) for number in range(jobs)]
    for first in range(0, jobs, _AT_ONCE):
        await asyncio.gather(*(_tell(bus, org, id, events) for id, events in due[first : first + _AT_ONCE]))


async def _tell(bus: Connection, org: str, id: str, events: list[Event]) -> None:
    for event in events:
        subject = subject_of(event, org, id)
        await bus.js.publish(subject, encode(event), timeout=60, headers={MSG_ID: subject})


@contextlib.asynccontextmanager
async def _gateway(settings: GatewaySettings) -> AsyncIterator[str]:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    bus = await connect(settings, "gateway")
    service = Service(
        name="gateway",
        settings=settings,
        secrets=settings.secrets_of("gateway"),
        bus=bus,
        blobs=BlobStore.open(settings.blob_url),
        off_loop=OffLoop(settings),
        port=listening.getsockname()[1],
    )
    server = uvicorn.Server(http_config(await setup(service), settings))
    serving = [
        asyncio.create_task(server.serve(sockets=[listening])),
        asyncio.create_task(service.supervise()),
    ]
    async with asyncio.timeout(_READY_WITHIN_S):
        while not server.started or service.checks["read model"]() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    yield service.url
    service.stop.set()
    await service.drain()
    server.should_exit = True
    await asyncio.gather(*serving)
    await bus.close()


@contextlib.contextmanager
def _recorded_steps():
    """Record the long steps of this thread's event loop, from now to the end of the block."""
    steps: list[Step] = []
    run: Callable[[Handle], None] = Handle._run  # pyright: ignore[reportPrivateUsage]

    def timed(self: Handle) -> None:
        cpu, begun = time.thread_time(), time.perf_counter()
        run(self)
        cpu = time.thread_time() - cpu
        if cpu > 2e-3:
            steps.append(Step(_named(self), cpu, time.perf_counter() - begun))

    Handle._run = timed  # pyright: ignore[reportPrivateUsage]
    try:
        yield steps
    finally:
        Handle._run = run  # pyright: ignore[reportPrivateUsage]


def _named(handle: Handle) -> str:
    """Return the name of a handle's work: of a task its coroutines down to the running one; else the callback."""
    callback = handle._callback  # pyright: ignore
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(callback)
    coroutine, names = task.get_coro(), list[str]()
    while isinstance(coroutine, CoroutineType):
        names.append(f"{coroutine.__name__}:{coroutine.cr_frame.f_lineno if coroutine.cr_frame else 'ended'}")
        coroutine = coroutine.cr_await
    return " ".join([*names[:1], *names[1:][-4:]])


async def use(url: str, key: str, *, seconds: float, watchers: int) -> None:
    """List, submit and watch for so many seconds; print what each took as JSON."""
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits) as http:
        page = (await http.get("/api/jobs", params={"limit": 100})).raise_for_status().json()
        ids = [job["id"] for job in page["data"]]
        watching = [asyncio.create_task(_watch(http, ids[k % len(ids)])) for k in range(watchers)]
        end = time.monotonic() + seconds
        took = await asyncio.gather(_repeat(http, "list", end), _repeat(http, "submit", end))
        for task in watching:
            task.cancel()
        ended = await asyncio.gather(*watching, return_exceptions=True)
    broken = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    figures = {name: value for part in took for name, value in part.items()}
    sys.stdout.write(json.dumps(figures | {"watchers that broke": len(broken)}))


async def _watch(http: httpx.AsyncClient, id: str) -> None:
    async with http.stream("GET", f"/api/jobs/{id}/events", headers={"Accept": "text/event-stream"}) as stream:
        async for _ in stream.aiter_bytes():
            pass


async def _repeat(http: httpx.AsyncClient, what: str, end: float) -> dict[str, float]:
    took: list[float] = []
    while time.monotonic() < end:
        begun = time.monotonic()
        if what == "list":
            reply = await http.get("/api/jobs", params={"limit": 100})
        else:
            reply = await http.post("/api/jobs", json={"config": _CONFIG, "config_name": "rl.toml"})
        reply.raise_for_status()
        took.append(time.monotonic() - begun)
    took.sort()
    return {f"{what}: requests": len(took), f"{what}: p99, ms": round(took[int(len(took) * 0.99)] * 1e3, 1)}


def _table(steps: list[Step], used: dict[str, float], jobs: int) -> Table:
    table = Table("the gateway's event loop", "", title=f"{jobs:,} live jobs")
    for step in steps[:8]:
        table.add_row(step.what[:150], f"{step.cpu_s * 1e3:.0f} ms of CPU, {step.whole_s * 1e3:.0f} ms in all")
    table.add_row("seconds of CPU in steps of over 2 ms", f"{sum(step.cpu_s for step in steps):.1f}")
    for name, value in used.items():
        table.add_row(name, f"{value:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())

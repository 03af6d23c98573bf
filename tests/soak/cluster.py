"""The cluster under fire: three nats-servers, two of every service, a task app, a judge, and a client."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from synth.blobs import BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.kv.reseal import Resealer
from synth.bus.server.embedded import free_port, new_users
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.events.catalogue import SERVICES
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.runtime.settings import ServiceSettings
from synth.service_secrets import ServiceSecrets
from tests.judge_server import JudgeCall, JudgeServer, scored
from tests.soak.bus_servers import BusServers
from tests.soak.greedy import make_greedy
from tests.soak.processes import ServiceProcess, plan_process
from tests.soak.shim import compile_shim
from tests.soak.tcp_proxy import TcpProxy
from tests.soak.unguarded import EARLIER_SECRET
from tests.soak.waiting import until

ROOT = Path(__file__).parents[2]
REPLICAS = 2
MODEL = "tiny-qwen3"
_START_S = 180.0
_APP_ENDS_S = 10.0
_ASK_S = 20.0
#: How long a client tries both gateways in turn before it says that the platform is away.
_PATIENCE_S = 120.0


@dataclass
class SoakCluster:
    """Everything that runs. settings: how the harness itself reaches the bus, past every proxy.

    without: the guard that the services lack, "" for none.
    """

    folder: Path
    without: str = ""
    api_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    environment_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    cluster_secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    services: list[ServiceProcess] = field(default_factory=list[ServiceProcess])
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start it all, and wait until every process is healthy."""
        users = new_users()
        self.bus_servers = BusServers(self.folder / "bus", users)
        self._closing.push_async_callback(self.bus_servers.stop)
        await self.bus_servers.start()
        self.settings = ServiceSettings(
            nats_url=",".join(server.config.url for server in self.bus_servers.servers),
            nats_user="bus",
            nats_password=SecretStr(users["bus"]),
        )
        self.bus: Connection = await connect(self.settings, "bus")
        self._closing.push_async_callback(self.bus.close)
        await provision(self.bus.js, topology(replicas=len(self.bus_servers.servers)))
        self.greedy = await make_greedy(self.bus, cluster_secret=self.cluster_secret, bootstrap_key=self.api_key)
        await asyncio.to_thread(make_tiny_qwen3, self.folder / "models" / MODEL)
        shim = await asyncio.to_thread(compile_shim, self.folder)
        self.blobs = BlobStore.open(f"file:{self.folder / 'blobs'}")
        judge = self._closing.enter_context(JudgeServer(scored(_digits)))
        self.judge = await self._proxy(urlsplit(judge.url).port or 0)
        self.task_app = await self._proxy(await asyncio.to_thread(self._start_task_app))
        ports = [server.config.port for server in self.bus_servers.servers]
        for service in SERVICES:
            for index in range(REPLICAS):
                name = f"{service}-{index}"
                password, shared = users[service], self._settings(service, index)
                self.services.append(
                    await plan_process(
                        name,
                        service,
                        folder=self.folder,
                        shim=shim,
                        bus_ports=ports,
                        password=password,
                        shared=shared,
                    )
                )
        for process in self.services if self.without else ():
            process.module = ("tests.soak.unguarded", self.without)
            process.env["PYTHONPATH"] = str(ROOT)
        runners = [asyncio.create_task(process.keep_running()) for process in self.services]
        self._closing.push_async_callback(_end, runners)
        await self._wait_healthy()

    def _settings(self, service: str, index: int) -> dict[str, str]:
        own = {"SYNTH_ENGINE": "transformers", "SYNTH_DEVICE": "cpu"} if service == "inference" else {}
        return own | {
            "SYNTH_BLOB_URL": f"file:{self.folder / 'blobs'}",
            "SYNTH_MODELS_DIR": str(self.folder / "models"),
            "SYNTH_CLUSTER_SECRET": self.cluster_secret,
            "SYNTH_ALLOW_LOOPBACK": "1",
            "SYNTH_BOOTSTRAP_API_KEY": self.api_key,
            "SYNTH_BOOTSTRAP_ENVIRONMENT_KEY": self.environment_key,
            "SYNTH_SERVE_REPLICAS": str(REPLICAS),
            "SYNTH_ORG_LIMITS": self.greedy.setting,
            "SYNTH_GRACE_S": "8",
            # Longer than the faults that can meet in one call: a job whose app comes back within it is not refused.
            "SYNTH_RETRY_FOR_S": "30",
        }

    async def rotate_secret(self) -> None:
        """Change the cluster's secret without a break, as docs/security.md describes it."""
        earlier, self.cluster_secret = self.cluster_secret, secrets.token_urlsafe(32)
        for current, accepted in ((earlier, self.cluster_secret), (self.cluster_secret, earlier)):
            for process in self.services:
                process.env |= {"SYNTH_CLUSTER_SECRET": current, "SYNTH_CLUSTER_SECRET_EARLIER": accepted}
            for index in range(REPLICAS):
                await asyncio.gather(*(process.restart() for process in self.services[index::REPLICAS]))
        if self.without == EARLIER_SECRET:
            return
        keyrings = ServiceSecrets.derive("bus", self.cluster_secret, (earlier,))
        await Resealer(self.bus, keyrings).reseal()

    async def _proxy(self, port: int) -> TcpProxy:
        proxy = await TcpProxy(port).start()
        self._closing.push_async_callback(proxy.close)
        return proxy

    def _start_task_app(self) -> int:
        port = free_port()
        with (self.folder / "math.log").open("wb") as log:
            app = subprocess.Popen(
                [sys.executable, "-m", "synth.demo.math", "--port", str(port)],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(ROOT), "ENVIRONMENT_API_KEY": self.environment_key},
                stdout=log,
                stderr=log,
            )
        self._closing.callback(_end_app, app)
        return port

    @property
    def task_url(self) -> str:
        return f"http://127.0.0.1:{self.task_app.port}"

    @property
    def judge_url(self) -> str:
        return f"http://127.0.0.1:{self.judge.port}/v1"

    def of(self, service: str) -> list[ServiceProcess]:
        """The replicas of a service."""
        return [process for process in self.services if process.service == service]

    async def _wait_healthy(self) -> None:
        for process in self.services:
            await until(process.healthy, seconds=_START_S, what=f"{process.name} is healthy")

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Ask one gateway, then the other, until one answers. Raises on a 4xx, and when nobody does."""
        deadline = time.monotonic() + _PATIENCE_S
        headers = {"Authorization": f"Bearer {self.api_key}", **options.pop("headers", {})}
        said = ""
        async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False, headers=headers) as http:
            while time.monotonic() < deadline:
                for gateway in self.of("gateway"):
                    try:
                        reply = await http.request(method, f"http://127.0.0.1:{gateway.port}{path}", **options)
                    except httpx.HTTPError as error:
                        said = repr(error)
                        continue
                    if reply.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                        reply.raise_for_status()
                        return reply.json()
                    said = f"{reply.status_code} {reply.text[:200]}"
                await asyncio.sleep(0.5)
        raise TimeoutError(f"no gateway answered {method} {path} in {_PATIENCE_S:.0f} s: {said}")

    async def upload(self, name: str, rows: list[dict[str, object]]) -> str:
        """Upload a dataset; returns its id."""
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        sent = await self.ask("POST", "/v1/files", files={"file": (name, body)}, data={"purpose": "fine-tune"})
        return str(sent["id"])

    async def stop(self) -> None:
        """End all of it, the last first."""
        await self._closing.aclose()


def _end_app(app: subprocess.Popen[bytes]) -> None:
    """End the task app, which waits a while for the rollouts that are under way, whoever asked for them."""
    app.terminate()
    try:
        app.wait(_APP_ENDS_S)
    except subprocess.TimeoutExpired:
        app.kill()
        app.wait(_APP_ENDS_S)


async def _end(runners: list[asyncio.Task[None]]) -> None:
    for runner in runners:
        runner.cancel()
    await asyncio.gather(*runners, return_exceptions=True)


def _digits(call: JudgeCall) -> float:
    """What the scripted judge gives: the share of digits in what it is shown."""
    return sum(c.isdigit() for c in call.text) / max(len(call.text), 1)

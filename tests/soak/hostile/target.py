"""The platform under attack: a bus, one of each service that answers users, and two organisations."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from synth.bus.connection import Connection, connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.bus.server.embedded import free_port
from synth.jobs.lifecycle import TERMINAL_FACTS
from synth.keys import new_api_key
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from tests.service.own_bus import Bus, provisioned
from tests.service.process import environment
from tests.soak.hostile.servers import ALLOWED
from tests.soak.waiting import until

MODEL = "tiny-qwen3"
VISION_MODEL = "tiny-qwen3-vl"
_START_S = 300.0
_STOP_S = 30.0
_ENDS = TERMINAL_FACTS | {"file.ready", "file.rejected"}


@dataclass
class Target:
    """What is attacked. extra: of the environment of each service.

    url: the gateway's. key, org: of who attacks; quiet_key: of who does not.

    ends: the last fact of each job and file that has ended.
    """

    folder: Path
    bus: Bus
    admin: Connection
    extra: Mapping[str, str]
    url: str = ""
    key: str = ""
    org: str = ""
    quiet_key: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, subprocess.Popen[bytes]])
    ports: dict[str, int] = field(default_factory=dict[str, int])
    ends: dict[str, Recorded] = field(default_factory=dict[str, Recorded])
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def end_of(self, key: str) -> Recorded:
        """The last fact of a job or of a file, once there is one."""
        async with self._news:
            await self._news.wait_for(lambda: key in self.ends)
        return self.ends[key]

    async def verified_or_ended(self, job: str) -> str:
        """The first fact of a job that says that it was verified, or that it ended."""
        async with aclosing(follow(self.admin, [f"job.*.*.{job}"], unreadable_too=True)) as facts:
            async for fact in facts:
                if fact.type == "job.verified" or fact.type in TERMINAL_FACTS:
                    return fact.type
        raise AssertionError("a follower ends only when it is closed")

    async def keep_reading(self) -> None:
        """Follow what ends, until cancelled."""
        async for fact in follow(self.admin, ["job.>", "file.>"], unreadable_too=True):
            if fact.type in _ENDS:
                async with self._news:
                    self.ends[fact.key] = fact
                    self._news.notify_all()

    def memory(self) -> dict[str, int]:
        """Resident bytes of each service, its children included, and of the bus."""
        return {name: _resident(pid) for name, pid in self._pids().items()}

    def memory_of_processes(self) -> dict[tuple[str, int], int]:
        """Resident bytes of each process, by the name of its service and its id."""
        sizes: dict[tuple[str, int], int] = {}
        for name, pid in self._pids().items():
            with suppress(psutil.NoSuchProcess):
                for process in (service := psutil.Process(pid), *service.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        sizes[name, process.pid] = process.memory_info().rss
        return sizes

    def _pids(self) -> dict[str, int]:
        assert self.bus.process is not None
        return {name: process.pid for name, process in self.processes.items()} | {"nats-server": self.bus.process.pid}

    async def ill(self) -> list[str]:
        """What does not run, or says of itself that it is not well."""
        ended = {name: process.poll() for name, process in self.processes.items()}
        found = [f"{name} ended with code {code}" for name, code in ended.items() if code is not None]
        async with httpx.AsyncClient(timeout=20, trust_env=False) as http:
            for name in (name for name, code in ended.items() if code is None):
                try:
                    reply = await http.get(f"http://127.0.0.1:{self.ports[name]}/healthz")
                except httpx.HTTPError as error:
                    found.append(f"{name} does not answer: {error!r}")
                    continue
                if reply.status_code != httpx.codes.OK:
                    found.append(f"{name} is not well: {reply.text[:300]}")
        return found

    def errors(self) -> dict[str, list[str]]:
        """What each service has logged as an error."""
        found: dict[str, list[str]] = {}
        for name in self.processes:
            lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
            found[name] = [line for line in lines if '"level":"error"' in line.replace('": "', '":"')]
        return found


def _resident(pid: int) -> int:
    total = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        total += process.memory_info().rss
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total += child.memory_info().rss
    return total


@asynccontextmanager
async def target(folder: Path, services: Sequence[str], extra: Mapping[str, str]) -> AsyncIterator[Target]:
    """A platform of these services, healthy; ended afterwards. Raises `TimeoutError` where it does not get there.

    extra: the environment of each service, beside that of every campaign.
    """
    async with AsyncExitStack() as closing:
        bus = Bus(folder)
        bus.start()
        closing.callback(bus.stop)
        await provisioned(bus)
        await asyncio.to_thread(make_tiny_qwen3, folder / "models" / MODEL)
        await asyncio.to_thread(make_tiny_qwen3_vl, folder / "models" / VISION_MODEL)
        admin = await connect(bus.settings("bus"), "bus")
        closing.push_async_callback(admin.close)
        found = Target(folder, bus, admin, extra)
        closing.callback(_stop, found.processes)
        for name in services:
            # One after the other: on a busy machine all of them together take longer.
            _start(found, name)
            await until(lambda name=name: _healthy(found, name), seconds=_START_S, what=f"{name} is healthy")
        found.url = f"http://127.0.0.1:{found.ports['gateway']}"
        gateway = await connect(bus.settings("gateway"), "gateway")
        closing.push_async_callback(gateway.close)
        secrets = SecretStore(gateway, bus.settings("gateway").secrets_of("gateway"))
        found.key, found.quiet_key = new_api_key(), new_api_key()
        found.org = (await secrets.ensure_api_key(found.key)).org
        await secrets.ensure_api_key(found.quiet_key)
        reading = asyncio.create_task(found.keep_reading())
        closing.callback(reading.cancel)
        yield found


def _start(found: Target, name: str) -> None:
    port = free_port()
    env = environment(
        found.bus.settings(name),
        SYNTH_PORT=str(port),
        SYNTH_READ_MODEL_PATH=str(found.folder / "gateway.db"),
        SYNTH_ALLOWED_CIDRS=f"{ALLOWED}/32",
        SYNTH_ENGINE="transformers",
        SYNTH_DEVICE="cpu",
        # What hangs is waited for: the less, the more can be tried.
        SYNTH_CALL_DEADLINE_S="2",
        SYNTH_RETRY_FOR_S="0.2",
        SYNTH_LOOP_TICK_S="0.02",
        SYNTH_IMAGE_DEADLINE_S="2",
        SYNTH_IMAGE_TRIES="1",
        SYNTH_ANSWER_GRACE_S="1",
        SYNTH_HTTP_HEADER_S="1",
        SYNTH_HTTP_BODY_WINDOW_S="1",
        OMP_NUM_THREADS="1",
        **found.extra,
    )
    with (found.folder / f"{name}.log").open("ab") as log:
        command = [sys.executable, "-m", "synth.synthd", name]
        found.processes[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    found.ports[name] = port


async def _healthy(found: Target, name: str) -> bool:
    if found.processes[name].poll() is not None:
        # Whoever runs it starts it again where the bus was not there in time.
        _start(found, name)
    try:
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            return (await http.get(f"http://127.0.0.1:{found.ports[name]}/healthz")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _stop(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    for process in processes.values():
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)


async def upload(http: httpx.AsyncClient, name: str, body: bytes) -> httpx.Response:
    """Upload a file to be trained on."""
    return await http.post("/api/files", files={"file": (name, body)}, data={"purpose": "fine-tune"})


async def post(http: httpx.AsyncClient, path: str, body: object) -> httpx.Response:
    """Post JSON, in ASCII: what is no character of Unicode travels, too."""
    return await http.post(path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})

"""A replica of a service, with links of its own to the bus and a disk of its own, started again when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from synth.bus.server.embedded import free_port
from synth.local.processes.running import end_group
from tests.soak.shim import Control
from tests.soak.tcp_proxy import Link, TcpProxy
from tests.soak.waiting import until

_RESTART_S = 0.5
#: Beside other faults.
_RESTARTED_S = 180.0


@dataclass
class ServiceProcess:
    """One replica of a service. name: `trainer-1`. ends: exit codes that nobody asked for.

    module: what is run with the name of the service.
    """

    name: str
    service: str
    env: dict[str, str]
    port: int
    links: list[TcpProxy]
    control: Control
    log: Path
    module: tuple[str, ...] = ("synth.synthd",)
    process: asyncio.subprocess.Process | None = None
    asked: bool = False
    ends: list[int] = field(default_factory=list[int])

    async def keep_running(self) -> None:
        """Start it, again and again, until cancelled; then end it."""
        try:
            while True:
                self.asked = False
                with self.log.open("ab") as out:
                    self.process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", *self.module, self.service),
                        env=self.env,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
                code = await self.process.wait()
                # What it had started dies with it, as in a container.
                end_group(self.process.pid, signal.SIGKILL)
                if not self.asked:
                    self.ends.append(code)
                await asyncio.sleep(_RESTART_S)
        finally:
            if self.process is not None:
                self.asked = True
                end_group(self.process.pid, signal.SIGKILL)
                await self.process.wait()
            for link in self.links:
                await link.close()

    async def healthy(self) -> bool:
        """Whether its HTTP side says so."""
        try:
            async with httpx.AsyncClient(timeout=3, trust_env=False) as http:
                return (await http.get(f"http://127.0.0.1:{self.port}/healthz")).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def restart(self) -> None:
        """End it in good order, and wait until its successor, which has the present `env`, is healthy."""
        before = self.process
        self.strike(signal.SIGTERM)

        async def has_successor() -> bool:
            return self.process is not before and await self.healthy()

        await until(has_successor, seconds=_RESTARTED_S, what=f"{self.name} is healthy again")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def strike(self, sign: signal.Signals) -> None:
        """Send a signal to the service and to all that it has started."""
        assert self.process is not None
        if not self.alive:
            return
        self.asked = self.asked or sign in (signal.SIGKILL, signal.SIGTERM)
        if sign is signal.SIGTERM:
            self.process.send_signal(sign)
        else:
            end_group(self.process.pid, sign)

    def cut_off(self, link: Link) -> None:
        """Set the state of its links to the bus."""
        for proxy in self.links:
            proxy.link = link


async def plan_process(
    name: str, service: str, *, folder: Path, shim: Path, bus_ports: list[int], password: str, shared: dict[str, str]
) -> ServiceProcess:
    """A replica of a service that has not been started yet. shared: the settings that all services have."""
    links = [await TcpProxy(port).start() for port in bus_ports]
    control = Control(folder / "control" / name)
    control.path.parent.mkdir(parents=True, exist_ok=True)
    control.write()
    port = free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    env |= shared | {
        "SYNTH_NATS_URL": ",".join(f"nats://127.0.0.1:{link.port}" for link in links),
        "SYNTH_NATS_USER": service,
        "SYNTH_NATS_PASSWORD": password,
        "SYNTH_PORT": str(port),
        "SYNTH_REPLICA": name,
        "SYNTH_WORK_DIR": str(folder / "work" / name),
        "SYNTH_READ_MODEL_PATH": str(folder / "work" / f"{name}.db"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **control.environment(shim, folder / "blobs"),
    }
    (folder / "logs").mkdir(exist_ok=True)
    return ServiceProcess(name, service, env, port, links, control, folder / "logs" / f"{name}.log")

"""Three nats-servers that form one cluster, each reached by clients and by the others through proxies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from synth.bus.server.embedded import ServerConfig, binary, free_port
from tests.soak.tcp_proxy import Link, TcpProxy
from tests.soak.waiting import until

SERVERS = 3
_HEALTHY_S = 150.0


@dataclass
class BusServer:
    """One server. routes: the proxy through which the other two reach it."""

    index: int
    config: ServerConfig
    route_port: int
    folder: Path
    routes: TcpProxy
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = field(default=False)

    def text(self, others: list[BusServer]) -> str:
        """The configuration of the embedded server, as a member of the cluster."""
        config = json.loads(self.config.text())
        config["server_name"] = f"bus-{self.index}"
        config["cluster"] = {
            "name": "soak",
            "listen": f"127.0.0.1:{self.route_port}",
            # Else a client learns the servers' own ports, and passes its proxy by.
            "no_advertise": True,
            "advertise": f"127.0.0.1:{self.routes.port}",
            "pool_size": -1,
            "routes": [f"nats-route://127.0.0.1:{other.routes.port}" for other in others],
        }
        return json.dumps(config, indent=1)

    def start(self) -> None:
        """Start the server; it joins the others by itself."""
        with (self.folder / "log").open("ab") as log:
            command = [str(binary()), "-c", str(self.folder / "nats.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """End the server as a power cut does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self, frozen: bool) -> None:
        """Stop the process where it stands, or let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    async def wait_healthy(self) -> None:
        """Return when it has its streams, up to date, and their leaders."""
        await until(self._healthy, seconds=_HEALTHY_S, what=f"bus-{self.index} is healthy")

    async def _healthy(self) -> bool:
        try:
            async with httpx.AsyncClient(timeout=2, trust_env=False) as http:
                reply = await http.get(f"http://127.0.0.1:{self.config.http_port}/healthz")
        except httpx.HTTPError:
            return False
        return reply.status_code == httpx.codes.OK


class BusServers:
    """The three of them, or another count."""

    def __init__(self, folder: Path, users: dict[str, str], *, count: int = SERVERS) -> None:
        self._count = count
        self._folder = folder
        self._users = users
        self.servers: list[BusServer] = []

    async def start(self, *, late: int = 0) -> None:
        """Start all but the last `late`, and wait until these have a leader."""
        for index in range(self._count):
            folder = self._folder / f"bus-{index}"
            folder.mkdir(parents=True)
            config = ServerConfig(port=free_port(), http_port=free_port(), store=folder / "store", users=self._users)
            route_port = free_port()
            routes = await TcpProxy(route_port).start()
            self.servers.append(BusServer(index, config, route_port, folder, routes))
        for server in self.servers:
            others = [other for other in self.servers if other is not server]
            (server.folder / "nats.conf").write_text(server.text(others))
        begun = self.servers[: self._count - late]
        for server in begun:
            server.start()
        for server in begun:
            await server.wait_healthy()

    async def leader(self, stream: str) -> BusServer:
        """The server that leads a stream, once there is one."""
        leader: BusServer | None = None

        async def known() -> bool:
            nonlocal leader
            leader = await self._leader_now(stream)
            return leader is not None

        await until(known, seconds=_HEALTHY_S, what=f"a server says who leads {stream}")
        assert leader is not None
        return leader

    async def _leader_now(self, stream: str) -> BusServer | None:
        """Who leads a stream, as the first server that knows it says."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            for server in self.servers:
                url = f"http://127.0.0.1:{server.config.http_port}/jsz"
                try:
                    reply = await http.get(url, params={"streams": "true"})
                except httpx.HTTPError:
                    continue
                for account in reply.json().get("account_details", []):
                    for detail in account.get("stream_detail", []):
                        if detail["name"] == stream and detail.get("cluster", {}).get("leader"):
                            return self.servers[int(str(detail["cluster"]["leader"]).removeprefix("bus-"))]
        return None

    def partition(self, server: BusServer, link: Link) -> None:
        """Cut what the others say to one server, and what it says to them, at its proxy."""
        server.routes.link = link

    async def stop(self) -> None:
        """End all."""
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                os.kill(server.process.pid, signal.SIGCONT)
                server.process.kill()
                server.process.wait()
            await server.routes.close()

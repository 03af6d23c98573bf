"""A nats-server of a test's own, that it may stop, break and put another store under."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pydantic import SecretStr

from synth.bus.connection import connect
from synth.bus.server.embedded import ServerConfig, free_port, new_users, start, wait_healthy
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.runtime.settings import ServiceSettings


class Bus:
    """A nats-server of a test's own, whose store can be saved and put back."""

    def __init__(self, home: Path) -> None:
        self.config = ServerConfig(port=free_port(), http_port=free_port(), store=home / "store", users=new_users())
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = start(self.config, self.home / "nats.conf", self.home / "nats.log")
        wait_healthy(self.config, timeout=30)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(20)

    def settings(self, user: str) -> ServiceSettings:
        return ServiceSettings(
            nats_url=self.config.url,
            nats_user=user,
            nats_password=SecretStr(self.config.users[user]),
            blob_url=f"file:{self.home / 'blobs'}",
            models_dir=self.home / "models",
            work_dir=self.home / "work",
            cluster_secret=SecretStr("test-cluster-secret"),
            replica=f"{user}-0",
        )


async def provisioned(bus: Bus) -> None:
    admin = await connect(bus.settings("bus"), "bus")
    await provision(admin.js, topology())
    await admin.close()

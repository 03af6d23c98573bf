"""A nats-server with the configuration that `synthd bus config` prints for TLS and nkeys, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from synth.bus.connection import Connection, connect
from synth.bus.server.account_key import AccountKey
from synth.bus.server.deployed import ISSUER_VARIABLE, ServerTls, deployed_config, password_variable
from synth.bus.server.embedded import ServerConfig, binary, free_port, new_users, wait_healthy
from synth.bus.server.topology import DEFAULT_POOL
from synth.runtime.settings import ServiceSettings


class SecureServer:
    """Runs on one store and one port, however often its configuration changes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.issuer_seed = AccountKey.new_seed()
        # The server reads a variable as it reads its configuration: one that begins with `-` would be a number.
        users = {user: f"p{password}" for user, password in new_users().items()}
        self._places = ServerConfig(free_port(), free_port(), home / "store", users)
        self._process: subprocess.Popen[bytes] | None = None
        self._opened: list[Connection] = []

    @property
    def url(self) -> str:
        return self._places.url

    def configure(self, *, tls: ServerTls | None = None, nkeys: Mapping[str, tuple[str, ...]] | None = None) -> None:
        text = deployed_config((DEFAULT_POOL,), nkeys=nkeys, tls=tls)
        for printed, here in (
            ("0.0.0.0:4222", f"127.0.0.1:{self._places.port}"),
            ("127.0.0.1:8222", f"127.0.0.1:{self._places.http_port}"),
            ('"/data"', json.dumps(str(self._places.store))),
        ):
            assert printed in text
            text = text.replace(printed, here)
        (self.home / "nats.conf").write_text(text)

    def start(self) -> None:
        passwords = {password_variable(user): password for user, password in self._places.users.items()}
        environment = os.environ | passwords | {ISSUER_VARIABLE: AccountKey(self.issuer_seed).public}
        command = [str(binary()), "-c", str(self.home / "nats.conf")]
        with (self.home / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_healthy(self._places)

    def reload(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def settings(self, service: str, **changed: Any) -> ServiceSettings:
        """A service's settings, by its password where `changed` gives no seed."""
        password = None if "nats_seed" in changed else SecretStr(self._places.users[service])
        whole: dict[str, Any] = {
            "nats_url": self.url,
            "nats_user": service,
            "nats_password": password,
            "replica": f"{service}-0",
            "grace_s": 2,
            "blob_url": f"file:{self.home / 'blobs'}",
            "work_dir": self.home / "work",
            "models_dir": self.home / "models",
            "cluster_secret": SecretStr("test-cluster-secret"),
        }
        return ServiceSettings(**whole | changed)

    async def connect(self, service: str, **changed: Any) -> Connection:
        self._opened.append(await connect(self.settings(service, **changed), service))
        return self._opened[-1]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait until this is so; a restarted server takes a while to have its clients back."""
        for _ in range(400):
            if holds():
                return
            await asyncio.sleep(0.05)
        raise TimeoutError((self.home / "nats.log").read_text()[-2000:])

    def connections(self) -> list[dict[str, Any]]:
        """What the server says of each connection that it has."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._places.http_port}/connz?auth=1", timeout=5) as reply:
            return json.load(reply)["connections"]

    async def close(self) -> None:
        for bus in self._opened:
            await bus.close()
        self.stop()

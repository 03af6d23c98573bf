"""A nats-server whose users share one account, as earlier versions configured it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from synth.bus.access.client import ADMIN_API, SERVICE_API
from synth.bus.server.embedded import binary
from tests.service.bus.own_server import OwnServer


def start_plain(own: OwnServer, authorization: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a test's own server without accounts."""
    config = json.loads(own.config.text())
    config.pop("accounts")
    text = json.dumps(config | {"authorization": authorization}).replace(f'"{SERVICE_API}.', f'"{ADMIN_API}.')
    own.config.store.mkdir(parents=True, exist_ok=True)
    file = own.home / "nats.conf"
    file.write_text(text)
    with (own.home / "nats.log").open("ab") as log:
        return subprocess.Popen([str(binary()), "-c", str(file)], stdout=log, stderr=log)

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from synth.bus.server.deployed import ServerTls
from tests.service.bus.access.certificates import Authority
from tests.service.bus.access.secure_server import SecureServer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The CA that signs the bus's certificate."""
    return Authority.at(tmp_path, "ca")


@pytest.fixture
def server_tls(authority: Authority) -> ServerTls:
    """A certificate for 127.0.0.1; no client needs one."""
    made = authority.sign("server")
    return ServerTls(str(made.cert), str(made.key))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecureServer]:
    """Neither configured nor started."""
    made = SecureServer(tmp_path)
    yield made
    await made.close()

"""Real parts for the tests: one nats-server for the session, provisioned as `synthd bus init` does it."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from pydantic import SecretStr

from synth.blobs import BlobStore
from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection, connect
from synth.bus.server.account_key import AccountKey
from synth.bus.server.embedded import ServerConfig, free_port, new_users, start, wait_healthy
from synth.bus.server.provision import provision
from synth.bus.server.topology import topology
from synth.runtime.settings import ServiceSettings
from synth.runtime.startup import collector_off

# How fast this machine is just now says nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@functools.cache
def _ssl_context(files: tuple[str | None, ...], *arguments: Any) -> ssl.SSLContext:
    return httpx.create_ssl_context(*arguments)


def _cached_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _ssl_context(files, verify, cert, trust_env)


@pytest.fixture(scope="session", autouse=True)
def authorities_are_loaded_once() -> Iterator[None]:
    """Share the TLS settings of HTTP clients: each client loads the authorities in 30 ms of CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", _cached_ssl_context)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without the garbage collector, and keep it from going through what they import."""
    with collector_off():
        return (yield)


def pytest_configure() -> None:
    """Have the programs that tests start end at Ctrl-C, also if a shell runs the tests in the background.

    Such a shell has its jobs ignore SIGINT, and what they start inherits that. A handler is not inherited.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured of event loops (`tests.loop_gaps`)."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    gaps = {value for r in reports for name, value in getattr(r, "user_properties", ()) if name == "loop gap"}
    if gaps:
        terminalreporter.section("longest gaps of event loops")
    for gap in sorted(gaps):
        terminalreporter.write_line(gap)


@pytest.fixture(scope="session", autouse=True)
async def nothing_goes_on() -> AsyncIterator[None]:
    """Cancels what the tests left running until it has ended, and names what does not end.

    A client of the bus swallows a cancellation that meets a reply; asyncio cancels once, and then waits for ever.
    """
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    await cancel_until_ended(*left, what=", ".join(str(task.get_coro()) for task in left), again_s=1)


@pytest.fixture(scope="session")
def issuer_seed() -> str:
    """What a gateway needs to let subscribers into this bus."""
    return AccountKey.new_seed()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory, issuer_seed: str) -> Iterator[ServerConfig]:
    """A running nats-server with a user for each service."""
    home = tmp_path_factory.mktemp("nats")
    config = ServerConfig(
        port=free_port(),
        http_port=free_port(),
        store=home / "store",
        users=new_users(),
        issuer=AccountKey(issuer_seed).public,
    )
    process = start(config, home / "nats.conf", home / "nats.log")
    wait_healthy(config)
    yield config
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


@pytest.fixture(scope="session")
def cluster_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blobs, models and scratch space that the services of a session share."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def settings_of(nats_server: ServerConfig, cluster_dir: Path):
    """The settings that a service of this name runs with."""

    @functools.cache
    def read(service: str) -> ServiceSettings:
        return ServiceSettings(
            nats_url=nats_server.url,
            nats_user=service,
            nats_password=SecretStr(nats_server.users[service]),
            blob_url=f"file:{cluster_dir / 'blobs'}",
            models_dir=cluster_dir / "models",
            work_dir=cluster_dir / "work" / service,
            cluster_secret=SecretStr("test-cluster-secret"),
            replica=f"{service}-0",
        )

    return lambda service: read(service).model_copy()


@pytest.fixture(scope="session")
async def bus_admin(settings_of) -> AsyncIterator[Connection]:
    """The provisioned bus, as its owner."""
    bus = await connect(settings_of("bus"), "bus")
    await provision(bus.js, topology())
    yield bus
    await bus.close()


@pytest.fixture
async def bus_as(settings_of, bus_admin: Connection) -> AsyncIterator:
    """Connects as a service; closed at the end of the test."""
    opened: list[Connection] = []

    async def dial(service: str) -> Connection:
        opened.append(await connect(settings_of(service), service))
        return opened[-1]

    yield dial
    for bus in opened:
        await bus.close()


@pytest.fixture(scope="session")
def blobs(cluster_dir: Path) -> BlobStore:
    return BlobStore.open(f"file:{cluster_dir / 'blobs'}")

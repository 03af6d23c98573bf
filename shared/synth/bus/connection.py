"""The connection to the bus: the one place that dials NATS."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
from dataclasses import dataclass

from nats.aio.client import Client
from nats.js import JetStreamContext

from synth.bus.cancellation import HeedingClient
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings

log = logs.get("bus")


@dataclass(frozen=True)
class Connection:
    """A live connection: the client, its JetStream context, and the name of the service that dialled."""

    nc: Client
    js: JetStreamContext
    service: str

    async def close(self) -> None:
        """Leave; what was published and acknowledged stays."""
        await self.nc.close()


def connect_options(settings: ServiceSettings, service: str) -> dict[str, object]:
    """The options of every client here; FastStream's broker takes the same.

    It reconnects for ever (a bus that is away is not our end), notices a dead peer within 4 s, and logs what the
    server refuses: a publish without permission is otherwise only a timeout.
    """

    async def on_error(error: Exception) -> None:
        log.error("bus error", error=f"{type(error).__name__}: {error}")

    async def on_disconnect() -> None:
        log.warning("bus disconnected")

    async def on_reconnect() -> None:
        log.info("bus reconnected")

    options: dict[str, object] = {
        "name": f"{service}/{settings.replica}/{os.getpid()}",
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.1,
        "connect_timeout": 5,
        "ping_interval": 2,
        "max_outstanding_pings": 2,
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
    }
    if settings.nats_user:
        options["user"] = settings.nats_user
        options["password"] = settings.nats_password.get_secret_value() if settings.nats_password else ""
    return options


async def connect(settings: ServiceSettings, service: str) -> Connection:
    """Dial the bus as this service; waits for a server that is not up yet."""
    nc = HeedingClient()
    await nc.connect(servers=settings.nats_url.split(","), **connect_options(settings, service))  # type: ignore[arg-type]
    return Connection(nc=nc, js=nc.jetstream(timeout=5), service=service)

"""The connection to the bus: the one place that dials NATS."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from nats.js import JetStreamContext

from synth.bus.access.client import BusClient
from synth.bus.access.nkeys import UserKey
from synth.bus.access.tls import refusal, tls_context
from synth.bus.versions.declared_schemas import DeclaredSchemas
from synth.bus.versions.newer_work import NewerWork
from synth.errors import UserError
from synth.fairness.slots import FairSlots
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings

log = logs.get("bus")


@dataclass(frozen=True)
class Connection:
    """A live connection: the client, its JetStream context, and the name of the service that dialled.

    newer: the work on it that only a newer version can do. suspects: the one slot for events that are suspected of
    killing their process; they take turns in it.
    """

    nc: BusClient
    js: JetStreamContext
    service: str
    newer: NewerWork = field(default_factory=NewerWork)
    suspects: FairSlots = field(default_factory=lambda: FairSlots(1))

    @cached_property
    def schemas(self) -> DeclaredSchemas:
        """The declared schemas: they show which events a newer version wrote, and which only claim it."""
        return DeclaredSchemas(self.nc)

    async def close(self) -> None:
        """Close the connection; published and acknowledged messages stay."""
        await self.nc.close()


def inbox_of(service: str) -> str:
    """Return the prefix of the subjects on which a service receives its answers; no other service may listen there."""
    return f"_INBOX.{service}"


def connect_options(settings: ServiceSettings, service: str) -> dict[str, object]:
    """Return the options of every client here; FastStream's broker takes the same.

    The client reconnects for ever (an outage of the bus must not end the process), notices a dead peer within 4 s, and
    logs the refusals of the server: otherwise a publish without permission is only a timeout. Raises `UserError` for
    wrong settings of TLS or of an nkey.
    """

    async def on_error(error: Exception) -> None:
        log.error("bus error", error=f"{type(error).__name__}: {error}")

    async def on_disconnect() -> None:
        log.warning("bus disconnected")

    async def on_reconnect() -> None:
        log.info("bus reconnected")

    options: dict[str, object] = {
        "name": f"{service}/{settings.replica}/{os.getpid()}",
        "inbox_prefix": inbox_of(service),
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.1,
        "connect_timeout": 5,
        "ping_interval": 2,
        "max_outstanding_pings": 2,
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
    }
    if (context := tls_context(settings)) is not None:
        options["tls"] = context
    return options | _proof(settings)


def _proof(settings: ServiceSettings) -> dict[str, object]:
    """Return the options that prove the identity of this client to the server."""
    password = settings.nats_password.get_secret_value() if settings.nats_password else ""
    seed = settings.nats_seed.get_secret_value().strip() if settings.nats_seed else ""
    if seed and password:
        raise UserError(
            "there is a seed of an nkey and a password",
            expected="one of the two",
            fix="leave SYNTH_NATS_PASSWORD out where the server knows this user by its nkey, else this",
            where="SYNTH_NATS_SEED",
        )
    if seed:
        # Checked here: otherwise an error appears only when the client dials.
        UserKey(seed)
        return {"nkeys_seed_str": seed}
    return {"user": settings.nats_user, "password": password} if settings.nats_user else {}


async def connect(settings: ServiceSettings, service: str) -> Connection:
    """Dial the bus as this service; waits for a server that is not up yet.

    Raises `UserError` if TLS fails with every server for a reason that waiting cannot fix.
    """
    servers = settings.nats_url.split(",")
    options = connect_options(settings, service)
    log_error = cast("Callable[[Exception], Awaitable[None]]", options["error_cb"])
    dialling, refusals = True, 0

    async def on_error(error: Exception) -> None:
        nonlocal refusals
        problem = refusal(error, settings) if dialling else None
        if problem is not None:
            refusals += 1
            if refusals >= len(servers):
                # What is raised here ends the dialling; nothing else does.
                raise UserError(problem)
        elif not isinstance(error, ConnectionResetError):
            # A reset gives no reason: it may have overtaken the server's answer about our certificate.
            refusals = 0
        await log_error(error)

    nc = BusClient(service)
    connecting = asyncio.create_task(nc.connect(servers=servers, **options | {"error_cb": on_error}))  # type: ignore[arg-type]
    try:
        await asyncio.wait([connecting])
        connecting.result()
    except UserError:
        await nc.close()
        raise
    except asyncio.CancelledError:
        # The client uses `asyncio.wait_for`, which before Python 3.12 can swallow a cancellation.
        while not connecting.done():
            connecting.cancel()
            await asyncio.wait([connecting], timeout=0.1)
        if nc.is_connected:
            await nc.close()
        raise
    dialling = False
    return Connection(nc=nc, js=nc.jetstream(timeout=5), service=service)

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
from synth.errors import Problem, UserError
from synth.fairness.slots import FairSlots
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings

log = logs.get("bus")


@dataclass(frozen=True)
class Connection:
    """A live connection: the client, its JetStream context, and the name of the service that dialled.

    newer: what the process has met on it that only a newer version can do. suspects: the place of events that are
    suspected of ending their process, which they have in turn.
    """

    nc: BusClient
    js: JetStreamContext
    service: str
    newer: NewerWork = field(default_factory=NewerWork)
    suspects: FairSlots = field(default_factory=lambda: FairSlots(1))

    @cached_property
    def schemas(self) -> DeclaredSchemas:
        """What tells the events of a newer version from those that only say that they are."""
        return DeclaredSchemas(self.nc)

    async def close(self) -> None:
        """Leave; what was published and acknowledged stays."""
        await self.nc.close()


def inbox_of(service: str) -> str:
    """Below which what a service asked for comes back to it; no other service may listen there."""
    return f"_INBOX.{service}"


def connect_options(settings: ServiceSettings, service: str) -> dict[str, object]:
    """The options of every client here; FastStream's broker takes the same.

    It reconnects for ever (a bus that is away is not our end), notices a dead peer within 4 s, and logs what the
    server refuses: a publish without permission is otherwise only a timeout. Raises `UserError` for settings of TLS or
    of an nkey that are not what they should be.
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
    """What says to the server who this is."""
    password = settings.nats_password.get_secret_value() if settings.nats_password else ""
    seed = settings.nats_seed.get_secret_value().strip() if settings.nats_seed else ""
    if seed and password:
        raise UserError(
            Problem(
                what="there is a seed of an nkey and a password",
                expected="one of the two",
                fix="leave SYNTH_NATS_PASSWORD out where the server knows this user by its nkey, else this",
                where="SYNTH_NATS_SEED",
            )
        )
    if seed:
        # Looked at here: a client finds out when it dials.
        UserKey(seed)
        return {"nkeys_seed_str": seed}
    return {"user": settings.nats_user, "password": password} if settings.nats_user else {}


async def connect(settings: ServiceSettings, service: str) -> Connection:
    """Dial the bus as this service; waits for a server that is not up yet.

    Raises `UserError` where every server refuses TLS, or is refused, for something that no waiting mends.
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
            # A reset says nothing: it may have overtaken what the server said of our certificate.
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

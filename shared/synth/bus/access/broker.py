"""FastStream's broker on the client of every other connection to the bus."""

# nats-py and FastStream annotate parts of themselves not at all.
# pyright: reportUnknownMemberType=false, reportMissingTypeArgument=false
from __future__ import annotations

from typing import Any

from faststream import AckPolicy
from faststream.nats import NatsBroker
from nats.aio.client import Client

from synth.bus.access.client import BusClient

# The options of a connection that FastStream takes in a form of its own only, and nkeys by another package only.
_ACCESS = ("user", "password", "nkeys_seed_str", "tls")


class BusBroker(NatsBroker):
    """A broker whose deliveries are acknowledged by hand, on a client that is dialled with these options."""

    def __init__(self, service: str, servers: list[str], options: dict[str, Any], *, grace_s: float) -> None:
        self._service = service
        self._access = {name: options[name] for name in _ACCESS if name in options}
        others = {name: value for name, value in options.items() if name not in _ACCESS}
        super().__init__(servers, graceful_timeout=grace_s, ack_policy=AckPolicy.MANUAL, logger=None, **others)

    async def _connect(self) -> Client:
        client = BusClient(self._service)
        await client.connect(**self._connection_kwargs, **self._access)
        self.config.connect(client)
        return client

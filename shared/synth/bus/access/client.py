"""The client of every connection to the bus: TLS where it is asked for, nkeys, and when a server is held for dead."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import Any

from nats.js import JetStreamContext

from synth.bus.access.nkeys import UserKey
from synth.bus.access.tls import PlainTextServer
from synth.bus.cancellation import HeedingClient

#: The prefix of JetStream's requests in the account of the streams, where the user `bus` is, and in a service's own.
ADMIN_API = "$JS.API"
SERVICE_API = "js.api"


class BusClient(HeedingClient):
    """A client that takes `tls` for an order, and `nkeys_seed_str` without a package of its own.

    Invariant: where it was given `tls`, no credential and no message leaves it in plain text, at a reconnect neither.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        #: The prefix of its requests to JetStream.
        self.api = ADMIN_API if service == "bus" else SERVICE_API

    def jetstream(self, **options: Any) -> JetStreamContext:
        """JetStream as this service's account has it."""
        return super().jetstream(**{"prefix": self.api} | options)

    async def _process_msg(self, *message: Any, **named: Any) -> None:
        # A server whose messages come is there: its answer to a ping stands behind them, for as long as they take.
        self._pings_outstanding = 0
        await super()._process_msg(*message, **named)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except Exception:
            # Of a connection whose TLS has failed asyncio tells no end, and nats-py would wait for it before the next.
            if self._transport is not None:
                self._transport.close()
                self._transport = None
            raise

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if "tls" in self.options and not self.is_connected:
            # What waits for a server is flushed into whatever connection there is, and that may not be encrypted yet.
            self._pending = []
            self._pending_data_size = 0
        await super()._close(status, do_cbs)

    def _setup_nkeys_seed_connect(self) -> None:
        key = UserKey(str(self._nkeys_seed_str))
        self._public_nkey = key.public
        self._signature_cb = key.sign

    def _connect_command(self) -> bytes:
        # nats-py encrypts where the server asks for it, and goes on in plain text where it does not. This is the first
        # that it says to a server.
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise PlainTextServer
        return super()._connect_command()

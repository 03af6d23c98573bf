"""The client of every connection to the bus: optional TLS, nkeys, and the detection of a dead server."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import Any

from nats.js import JetStreamContext

from synth.bus.access.nkeys import UserKey
from synth.bus.access.tls import PlainTextServer
from synth.bus.cancellation import HeedingClient

#: The prefix of JetStream's requests: in the account of the streams (the user `bus`), and in the account of a service.
ADMIN_API = "$JS.API"
SERVICE_API = "js.api"


class BusClient(HeedingClient):
    """A client that enforces TLS if `tls` is set, and reads `nkeys_seed_str` without another package.

    Invariant: if `tls` is set, it sends no credential and no message in plain text, also after a reconnect.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        #: The prefix of its requests to JetStream.
        self.api = ADMIN_API if service == "bus" else SERVICE_API

    def jetstream(self, **options: Any) -> JetStreamContext:
        """Return the JetStream context with the API prefix of this service's account."""
        return super().jetstream(**{"prefix": self.api} | options)

    async def _process_msg(self, *message: Any, **named: Any) -> None:
        # A server that sends messages is alive: its answer to a ping is queued behind them.
        self._pings_outstanding = 0
        await super()._process_msg(*message, **named)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except Exception:
            # asyncio does not report the end of a connection whose TLS failed, and nats-py would wait for it.
            if self._transport is not None:
                self._transport.close()
                self._transport = None
            raise

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if "tls" in self.options and not self.is_connected:
            # Pending data would be flushed into the current connection, which may not be encrypted yet.
            self._pending = []
            self._pending_data_size = 0
        await super()._close(status, do_cbs)

    def _setup_nkeys_seed_connect(self) -> None:
        key = UserKey(str(self._nkeys_seed_str))
        self._public_nkey = key.public
        self._signature_cb = key.sign

    def _connect_command(self) -> bytes:
        # nats-py encrypts only if the server requires TLS, and otherwise continues in plain text. This command is the
        # first data that it sends to a server.
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise PlainTextServer
        return super()._connect_command()

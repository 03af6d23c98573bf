"""The log-ins of bus keys: nats-server's auth callout sends each connection that is no service's to the gateways.

A bus key may listen below its own subject and publish nothing, for one session. Invariant: an accepted connection ends
by itself, at the end of the session or of the key, and the log-ins within a session's time are counted, so that a key
has a bounded number of connections.
"""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.bus.kv.secrets import ApiKey
from synth.bus.server.account_key import AccountKey, read_claims
from synth.bus.server.accounts import OUTSIDE_ACCOUNT
from synth.bus.server.permissions import LOGINS
from synth.gateway.audit.requests import RequestAudit
from synth.gateway.auth import ApiKeyCache
from synth.gateway.errors import ApiError
from synth.gateway.subscribers.feeds import subjects_of
from synth.gateway.subscribers.settings import SubscriberSettings
from synth.keys import is_bus_key, mistyped
from synth.runtime import logs

log = logs.get("logins")

# The server gives up a log-in after two seconds: an answer to more waiting log-ins than these would come too late.
_MAX_WAITING = 1000
_MAX_KEYS = 10_000
#: Subscriptions of one connection: its feeds, and a few that are ending.
_MAX_SUBSCRIPTIONS = 64
#: A bus key may not publish, so no payload is needed.
_MAX_PAYLOAD_BYTES = 1024


class _ConnectOptions(msgspec.Struct, frozen=True):
    user: str = ""
    password: str = msgspec.field(default="", name="pass")


class _AskingServer(msgspec.Struct, frozen=True):
    id: str


class _ClientInfo(msgspec.Struct, frozen=True):
    host: str = ""


class _Request(msgspec.Struct, frozen=True):
    """The server's description of a connection that logs in."""

    server_id: _AskingServer
    user_nkey: str
    client_info: _ClientInfo = _ClientInfo()
    connect_opts: _ConnectOptions = _ConnectOptions()


class Logins:
    """The responder to the server for every connection that is no service's."""

    def __init__(
        self,
        bus: Connection,
        keys: ApiKeyCache,
        issuer: AccountKey,
        settings: SubscriberSettings,
        audit: RequestAudit,
    ) -> None:
        self._bus = bus
        self._audit = audit
        self._keys = keys
        self._issuer = issuer
        self._settings = settings
        self._sessions: dict[str, deque[float]] = {}

    async def serve(self) -> None:
        """Answer log-ins until cancelled; the gateways share them."""
        subscription = await self._bus.nc.subscribe(
            LOGINS, queue=self._bus.service, cb=self._answer, pending_msgs_limit=_MAX_WAITING
        )
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await subscription.unsubscribe()
            except NatsError as error:
                log.warning("could not leave the queue of logins", error=repr(error))

    async def _answer(self, msg: Msg) -> None:
        try:
            requested = msgspec.convert(read_claims(msg.data).get("nats"), _Request, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            log.warning("a login cannot be read", error=str(error))
            return
        answer: dict[str, Any] = {"type": "authorization_response", "version": 2}
        password = requested.connect_opts.password
        try:
            key, reason = await self._find(password)
        except ApiError as error:
            # The bus is unavailable, so the key's record is unknown.
            key, reason = None, str(error)
        else:
            if reason and password:
                self._audit.note_bus_login(
                    org=key.org if key else None,
                    key=key.key_id if key else self._audit.digest(password),
                    address=requested.client_info.host,
                )
        if key is None or reason:
            log.info("login refused", user=requested.connect_opts.user[:100], reason=reason)
            answer["error"] = reason
        else:
            answer["jwt"] = self._let_in(key, requested.user_nkey)
        await self._bus.nc.publish(
            msg.reply,
            self._issuer.sign({"sub": requested.user_nkey, "aud": requested.server_id.id, "nats": answer}).encode(),
        )

    async def _find(self, password: str) -> tuple[ApiKey | None, str]:
        """Return the bus key with this password, and why it is refused; an empty reason if it is accepted."""
        if not is_bus_key(password) or mistyped(password):
            return None, "the password is no key of `synthctl keys create --bus`"
        key = await self._keys.find(password)
        if key is None or not key.bus:
            return None, "the key is not known here"
        if not key.active:
            return key, f"the key {key.key_id} has ended"
        if not self._count(key):
            return key, f"the key {key.key_id} has logged in {self._settings.bus_logins} times (SYNTH_BUS_LOGINS)"
        return key, ""

    def _count(self, key: ApiKey) -> bool:
        """Count a log-in; return False if the key has reached its limit of sessions."""
        now = time.monotonic()
        if key.digest not in self._sessions and len(self._sessions) >= _MAX_KEYS:
            self._sessions = {digest: ends for digest, ends in self._sessions.items() if ends[-1] > now}
        ends = self._sessions.setdefault(key.digest, deque())
        while ends and ends[0] <= now:
            ends.popleft()
        if len(ends) >= self._settings.bus_logins:
            return False
        ends.append(now + self._settings.bus_session_s)
        return True

    def _let_in(self, key: ApiKey, user_nkey: str) -> str:
        ends = time.time() + self._settings.bus_session_s
        if key.expires_at is not None:
            ends = min(ends, key.expires_at.timestamp())
        log.info("login", org=key.org, key=key.key_id)
        may: dict[str, Any] = {
            "type": "user",
            "version": 2,
            "pub": {"deny": [">"]},
            "sub": {"allow": [subjects_of(key)]},
            "subs": _MAX_SUBSCRIPTIONS,
            "data": -1,
            "payload": _MAX_PAYLOAD_BYTES,
            # Refuse leaf nodes, which have many clients behind them, and MQTT, which keeps sessions in streams.
            "allowed_connection_types": ["STANDARD", "WEBSOCKET"],
        }
        claims = {"sub": user_nkey, "aud": OUTSIDE_ACCOUNT, "name": key.key_id, "exp": int(ends), "nats": may}
        return self._issuer.sign(claims)

"""The middleware for a bus that lost acknowledged messages: it refuses writes, and no key is refused as unknown."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from synth.gateway.chat_proxy.paths import is_model_call
from synth.gateway.errors import error_response, unavailable
from synth.gateway.ledger.watch import LedgerWatch
from synth.gateway.middleware.completeness import OPEN

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: The damage lasts until an operator restores a backup.
_RETRY_AFTER_S = 60


class Intact:
    """ASGI middleware: a write is a 503 while the bus is damaged, and every request while secrets are missing."""

    def __init__(self, app: ASGIApp, *, ledger: LedgerWatch) -> None:
        self._app = app
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        damage = self._ledger.damage
        if scope["type"] == "http" and damage and scope["path"] not in OPEN:
            reads = scope["method"] in _READS or is_model_call(scope["method"], scope["path"])
            if damage.keys or not reads:
                message = (
                    f"the cluster has lost what it had stored ({damage.counts}), and takes nothing until its operator "
                    "has restored a backup"
                )
                await error_response(unavailable(message, retry_after=_RETRY_AFTER_S))(scope, receive, send)
                return
        await self._app(scope, receive, send)

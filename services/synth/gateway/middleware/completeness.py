"""The middleware that delays requests while the read model is incomplete and would give wrong answers."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from synth.gateway.errors import error_response, unavailable
from synth.gateway.read_model.hub import Hub

#: The paths of observability, and the document of the API.
OPEN = frozenset({"/livez", "/healthz", "/metrics", "/openapi.json"})


class Completeness:
    """ASGI middleware: a request waits at most `wait_s` seconds until the model is complete; then it is a 503.

    Waiting is better than a retry, because most projections end before a client would retry.
    """

    def __init__(self, app: ASGIApp, *, hub: Hub, wait_s: float) -> None:
        self._app = app
        self._hub = hub
        self._wait_s = wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._hub.complete and scope["path"] not in OPEN:
            try:
                await self._hub.wait_until_complete(timeout=self._wait_s)
            except TimeoutError:
                message = f"the gateway projects the log, and {self._hub.lag} events are left; try again"
                await error_response(unavailable(message, retry_after=5))(scope, receive, send)
                return
        await self._app(scope, receive, send)

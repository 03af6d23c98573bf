"""The middleware that counts and times requests, notes them for the audit stream, and carries their trace."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from synth.gateway.audit.requests import RequestAudit
from synth.gateway.metrics import LATENCY, REQUESTS
from synth.runtime.telemetry import traced


class RequestMetrics:
    """ASGI middleware that counts, times and audits requests by route template, and runs each inside its trace."""

    def __init__(self, app: ASGIApp, audit: RequestAudit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Use the template: each path with ids in it would be a label of its own.
                route = getattr(scope.get("route"), "path", "unmatched")
                REQUESTS.labels(scope["method"], route, message["status"]).inc()
                LATENCY.labels(scope["method"], route).observe(time.perf_counter() - begun)
                self._audit.note_response(scope, message["status"])
            await send(message)

        parent = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"traceparent"), None)
        with traced(parent):
            await self._app(scope, receive, send_measured)

"""What the gateway measures of itself, and the middleware that measures requests and carries their trace."""

from __future__ import annotations

import time

from prometheus_client import Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from synth.runtime.telemetry import traced

REQUESTS = Counter("synth_gateway_requests", "Requests", ["method", "route", "status"])
LATENCY = Histogram(
    "synth_gateway_first_byte_seconds",
    "Time to the first byte of the answer",
    ["method", "route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)
STREAMS_OPEN = Gauge("synth_gateway_streams_open", "Open event streams")
STREAMS_LAGGED = Counter("synth_gateway_streams_lagged", "Times that a slow watcher was sent back to the log")
PROJECTOR_LAG = Gauge("synth_gateway_projector_lag_events", "Events of the log that are not in the read model")
PROJECTED = Counter("synth_gateway_projected_events", "Events projected into the read model")


class Measured:
    """ASGI middleware: counts and times requests by route template, and runs each inside its trace."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Only the template: a path with ids in it would be a label of its own each time.
                route = getattr(scope.get("route"), "path", "unmatched")
                REQUESTS.labels(scope["method"], route, message["status"]).inc()
                LATENCY.labels(scope["method"], route).observe(time.perf_counter() - begun)
            await send(message)

        parent = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"traceparent"), None)
        with traced(parent):
            await self._app(scope, receive, measured)

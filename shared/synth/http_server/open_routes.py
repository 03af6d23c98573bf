"""Routes of a service without a key, beside its health: its metrics, and the limit of such requests per address."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

#: Seconds of its rate that an address may take at once.
_BURST_S = 5
#: Addresses whose last requests are remembered.
_MAX_ADDRESSES = 10_000
#: To make them takes milliseconds, in which nothing else is answered.
_METRICS_KEPT_S = 0.1


@dataclass
class AddressLimit:
    """The limit of each address on requests that need no key."""

    per_s: float
    now: Callable[[], float] = time.monotonic
    _full_at: dict[str, float] = field(default_factory=dict[str, float])

    def refuse(self, request: Request) -> Response | None:
        """Count a request; returns a 429 if its address sends too many."""
        address, now = request.client.host if request.client else "", self.now()
        if address not in self._full_at and len(self._full_at) >= _MAX_ADDRESSES:
            self._full_at.clear()
        # When the address may make all of its burst again.
        full_at = max(now, self._full_at.get(address, now)) + 1 / self.per_s
        wait = full_at - now - _BURST_S
        if wait <= 0:
            self._full_at[address] = full_at
            return None
        what = f"too many requests without a key from {address}; at most {self.per_s:g} a second"
        headers = {"Retry-After": str(math.ceil(wait))}
        return _refusal(429, f"{what} (SYNTH_OPEN_REQUESTS_PER_S)", "rate_limit", headers)


class MetricsPage:
    """`/metrics`: Prometheus text."""

    def __init__(self, limit: AddressLimit, *, loopback_only: bool) -> None:
        self._limit = limit
        self._loopback_only = loopback_only
        self._text = b""
        self._made_at = -math.inf

    async def answer(self, request: Request) -> Response:
        """Return the metrics as they were a moment ago."""
        if (refused := self._limit.refuse(request)) is not None:
            return refused
        if self._loopback_only and not _is_loopback(request):
            what = "metrics are served to this machine alone; SYNTH_METRICS_PORT serves them on a port of their own"
            return _refusal(403, what, "permission", {})
        now = time.monotonic()
        if now - self._made_at > _METRICS_KEPT_S:
            self._text, self._made_at = generate_latest(), now
        return Response(self._text, media_type=CONTENT_TYPE_LATEST)


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _refusal(status: int, message: str, kind: str, headers: dict[str, str]) -> Response:
    error: dict[str, object] = {"message": message, "type": kind, "param": None, "code": None, "problems": []}
    return JSONResponse({"error": error, "detail": message}, status_code=status, headers=headers)

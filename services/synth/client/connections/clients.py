"""The one place of the client that makes HTTP clients.

Invariants. A client has one origin, and sends nothing to another: its key follows no redirect. A key is put into a
header here alone, after its origin is known to be confirmed. A proxy never reads a key in clear text.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from synth.client.connections.config import ConfigValue
from synth.client.connections.known_origins import require_confirmed
from synth.client.connections.origins import join_origin, origin_of
from synth.client.connections.proxies import Proxy, UnusableProxy, proxy_for
from synth.console.errors import UsageProblem
from synth.outbound.failures import reason_of, remedy_of


@dataclass(frozen=True)
class Route:
    """The way to one origin. proxy: the one that it goes through; None for a direct connection."""

    origin: str
    proxy: Proxy | None

    @property
    def options(self) -> dict[str, Any]:
        """The options of an HTTP client that goes this way, and no other."""
        proxy = self.proxy.transport if self.proxy else None
        return {"proxy": proxy, "trust_env": False, "follow_redirects": False}

    def check(self, request: httpx.Request) -> None:
        """Raise `ValueError` for a request to another origin."""
        url = request.url
        if join_origin(url.scheme, url.host, url.port) != self.origin:
            raise ValueError(f"a client of {self.origin} is asked for {url}")

    def reason(self, error: httpx.TransportError) -> str:
        """Return why a request failed, in words; a proxy on the way is named."""
        reason = reason_of(error)
        return f"through the proxy {self.proxy.label}: {reason}" if self.proxy else reason

    def fix(self, usual: str, error: httpx.TransportError) -> str:
        """Return the fix for a failed request: of the proxy, or of the failure, else `usual`."""
        return f"is the proxy running? {self.proxy.remedy}" if self.proxy else remedy_of(error) or usual


class OriginClient(httpx.Client):
    """An HTTP client of one origin."""

    def __init__(self, route: Route, **options: Any) -> None:
        super().__init__(**route.options, **options)
        self.route = route

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request to the origin. Raises `ValueError` for another one."""
        self.route.check(request)
        return super().send(request, **options)


class AsyncOriginClient(httpx.AsyncClient):
    """An asynchronous HTTP client of one origin."""

    def __init__(self, route: Route, **options: Any) -> None:
        super().__init__(**route.options, **options)
        self.route = route

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request to the origin. Raises `ValueError` for another one."""
        self.route.check(request)
        return await super().send(request, **options)


def open_http(
    address: ConfigValue,
    *,
    key: ConfigValue | None = None,
    headers: Sequence[str] = ("Authorization",),
    timeout: httpx.Timeout | float | None,
    transport: httpx.BaseTransport | None = None,
) -> OriginClient:
    """Make a client of the origin of an address.

    key: sent with each request, in each of `headers`; as a bearer token in `Authorization`. transport: of an app in
    this process. Raises `UnconfirmedOrigin` for a key that may not be sent there, and `UnusableProxy`.
    """
    route, options = _prepare(address, key, headers, proxied=transport is None)
    return OriginClient(route, timeout=timeout, transport=transport, **options)


def open_async_http(
    address: ConfigValue, *, key: ConfigValue, timeout: httpx.Timeout | float | None
) -> AsyncOriginClient:
    """Make an asynchronous client of the origin of an address, as `open_http` does."""
    route, options = _prepare(address, key, ("Authorization",), proxied=True)
    return AsyncOriginClient(route, timeout=timeout, **options)


def _prepare(
    address: ConfigValue, key: ConfigValue | None, headers: Sequence[str], *, proxied: bool
) -> tuple[Route, dict[str, Any]]:
    """Return the way to an address, and the options of its client, whose headers have the key."""
    values: dict[str, str] = {}
    if key is not None:
        require_confirmed(key, address)
        if not (key.text.isascii() and key.text.isprintable()):
            what = f"{key.label} has characters that an HTTP header cannot hold"
            raise UsageProblem(what, fix="copy the key again, whole", where=key.label)
        values = {name: f"Bearer {key.text}" if name == "Authorization" else key.text for name in headers}
    origin = origin_of(address.text)
    proxy = proxy_for(address.text) if proxied else None
    if key is not None and proxy is not None and origin.startswith("http:"):
        raise UnusableProxy(
            f"{key.label} is not sent to {origin} through the proxy {proxy.label}, which would read it in clear text",
            expected="an https:// address, or a direct connection",
            fix=f"use https, or add {proxy.host} to NO_PROXY",
            where=address.label,
        )
    if origin.startswith("http:") and proxy is None:
        # To load authorities takes 30 ms of CPU time, and nothing here uses TLS.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        # The user's own CAs (SSL_CERT_FILE, SSL_CERT_DIR) hold; nothing else of the environment does.
        verify = httpx.create_ssl_context(trust_env=True)
    # A caller decides how many requests it sends at one time.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return Route(origin, proxy), {"headers": values, "verify": verify, "limits": limits}

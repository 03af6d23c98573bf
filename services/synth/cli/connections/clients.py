"""The one place of the command line that makes HTTP clients.

Invariants. A client has one origin, and sends nothing to another: its key follows no redirect. A key is put into a
header here alone, after its origin is known to be confirmed. A proxy never reads a key in clear text.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import httpx

from synth.cli.config import ConfigValue
from synth.cli.connections.known_origins import require_confirmed
from synth.cli.connections.proxies import Proxy, UnusableProxy, proxy_for
from synth.cli.origins import join_origin, origin_of
from synth.console.errors import UsageProblem
from synth.outbound.failures import reason_of, remedy_of


class OriginClient(httpx.Client):
    """An HTTP client of one origin. proxy: the one that it goes through; None if it connects by itself."""

    def __init__(self, origin: str, proxy: Proxy | None, **options: Any) -> None:
        super().__init__(proxy=proxy.transport if proxy else None, trust_env=False, follow_redirects=False, **options)
        self._origin = origin
        self._proxy = proxy

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request to the origin. Raises `ValueError` for another one."""
        url = request.url
        if join_origin(url.scheme, url.host, url.port) != self._origin:
            raise ValueError(f"a client of {self._origin} is asked for {url}")
        return super().send(request, **options)

    def reason(self, error: httpx.TransportError) -> str:
        """Return why a request failed, in words; a proxy on the way is named."""
        reason = reason_of(error)
        return f"through the proxy {self._proxy.label}: {reason}" if self._proxy else reason

    def fix(self, usual: str, error: httpx.TransportError) -> str:
        """Return the fix for a failed request: of the proxy, or of the failure, else `usual`."""
        return f"is the proxy running? {self._proxy.remedy}" if self._proxy else remedy_of(error) or usual


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
    values: dict[str, str] = {}
    if key is not None:
        require_confirmed(key, address)
        if not (key.text.isascii() and key.text.isprintable()):
            what = f"{key.label} has characters that an HTTP header cannot hold"
            raise UsageProblem(what, fix="copy the key again, whole", where=key.label)
        values = {name: f"Bearer {key.text}" if name == "Authorization" else key.text for name in headers}
    origin = origin_of(address.text)
    proxy = proxy_for(address.text) if transport is None else None
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
    return OriginClient(
        origin, proxy, headers=values, timeout=timeout, transport=transport, verify=verify, limits=limits
    )

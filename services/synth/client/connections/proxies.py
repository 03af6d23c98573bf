"""The proxy that the environment names for an address: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import importlib.util
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from synth.client.connections.config import user_environment, without_password
from synth.client.connections.origins import DEFAULT_PORTS, ip_address, is_loopback_host, plain_host
from synth.console.errors import UsageProblem

_SCHEMES = ("http", "https", "socks5", "socks5h")


class UnusableProxy(UsageProblem):
    """The environment names a proxy that cannot be used for this address."""


@dataclass(frozen=True)
class Proxy:
    """A proxy. variable: the one that names it. host: the host that it is used for."""

    transport: httpx.Proxy
    url: str
    variable: str
    host: str

    @property
    def label(self) -> str:
        """The proxy and its variable, without the password."""
        return f"{self.url} ({self.variable})"

    @property
    def remedy(self) -> str:
        """How to use no proxy."""
        return f"correct or unset {self.variable}, or add {self.host} to NO_PROXY"


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy for an address; None for a direct connection. Loopback is never proxied.

    As in curl, a name in lower case goes before one in upper case. Raises `UnusableProxy`.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    environment = user_environment()

    def read(name: str) -> tuple[str, str]:
        lower = name.lower()
        return (lower, environment[lower]) if lower in environment else (name, environment.get(name, ""))

    variable, text = next((v for v in (read(f"{parts.scheme.upper()}_PROXY"), read("ALL_PROXY")) if v[1]), ("", ""))
    if not text or is_loopback_host(host) or _is_excluded(host, port, read("NO_PROXY")[1]):
        return None
    return _proxy(text if "://" in text else f"http://{text}", variable, host)


def _is_excluded(host: str, port: int, excluded: str) -> bool:
    """Return whether NO_PROXY has the host: `*`, a name with its subdomains, an address, a network; port optional."""
    name, address = plain_host(host), ip_address(host)
    for entry in excluded.lower().replace(" ", ",").split(","):
        pattern, entry_port = entry, ""
        if entry.startswith("["):
            pattern, _, entry_port = entry[1:].partition("]")
        elif entry.count(":") == 1:
            pattern, _, entry_port = entry.partition(":")
        if entry_port.removeprefix(":") not in ("", str(port)):
            continue
        suffix = pattern.lstrip("*").strip(".")
        if pattern == "*" or (suffix and (name == suffix or name.endswith(f".{suffix}"))):
            return True
        if address is not None and _is_in(address, pattern):
            return True
    return False


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _proxy(text: str, variable: str, host: str) -> Proxy:
    shown = without_password(text)
    fix = f"correct or unset {variable}, or add {host} to NO_PROXY"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
        transport = httpx.Proxy(text) if valid else None
    except (ValueError, httpx.InvalidURL):
        transport = None
    if transport is None:
        expected = "a URL such as http://proxy.example:3128; the scheme is one of " + ", ".join(_SCHEMES)
        raise UnusableProxy(f"{shown!r} is not the address of a proxy", expected=expected, fix=fix, where=variable)
    if transport.url.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        what = f"{shown} is a SOCKS proxy, for which the package socksio is missing"
        raise UnusableProxy(what, fix=f"pip install socksio; or {fix}", where=variable)
    return Proxy(transport, shown, variable, host)

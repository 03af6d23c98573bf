"""The origin of an address, in one spelling: a key belongs to an origin."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from synth.base_url import base_url_fault

DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL: `HTTPS://App.Example.:443/x` is `https://app.example`.

    Raises `ValueError` for a URL that readers could understand differently (see `synth.base_url`).
    """
    if fault := base_url_fault(url):
        raise ValueError(fault)
    parts = urlsplit(url)
    return join_origin(parts.scheme, parts.hostname or "", parts.port)


def join_origin(scheme: str, host: str, port: int | None) -> str:
    """Return an origin from its parts; a default port is left out."""
    host = plain_host(host)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}" + ("" if port in (None, DEFAULT_PORTS.get(scheme)) else f":{port}")


def is_loopback(url: str) -> bool:
    """Return whether the host is this machine's loopback, by its address or as `localhost`. No name is resolved."""
    return not base_url_fault(url) and is_loopback_host(urlsplit(url).hostname or "")


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine's loopback."""
    host = plain_host(host)
    address = ip_address(host)
    return host == "localhost" if address is None else address.is_loopback


def plain_host(host: str) -> str:
    """Return a host in lower case, without the dot at its end, and an IP address in its usual form."""
    host = host.lower().removesuffix(".")
    address = ip_address(host)
    return host if address is None else str(address)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host spells; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # The resolver accepts short forms: 127.1, 0x7f.1 and 2130706433 are 127.0.0.1.
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):
            return None
    return getattr(address, "ipv4_mapped", None) or address

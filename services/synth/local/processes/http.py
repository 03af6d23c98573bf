"""HTTP to processes of this machine: without a key, and never through a proxy."""

from __future__ import annotations

import ssl

import httpx


def open_local_http(*, timeout: float) -> httpx.AsyncClient:
    """Make a client for the processes that this machine runs."""
    return httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False, verify=_no_authorities())


def answers(url: str, *, timeout: float) -> bool:
    """Return whether a process answers at this address, with any status."""
    try:
        httpx.get(url, timeout=timeout, trust_env=False, follow_redirects=False, verify=_no_authorities())
    except httpx.TransportError:
        return False
    return True


def _no_authorities() -> ssl.SSLContext:
    """Return the TLS settings of a client that connects without TLS. To load authorities takes 30 ms of CPU time."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

"""Limits on connections and requests of any service that listens, before their sender is known."""

from __future__ import annotations

import ipaddress

from pydantic import Field, field_validator

from synth.settings import Settings


class HttpSettings(Settings):
    """The bounds of the HTTP side of a service."""

    http_header_s: float = Field(default=15.0, gt=0)
    """How long the line and the headers of a request may take to arrive; then it is answered with a 408."""

    http_header_bytes: int = Field(default=64 << 10, ge=1 << 10)
    """How long they may be together; more is a 431."""

    http_body_window_s: float = Field(default=20.0, gt=0)
    """A body has to advance by `SYNTH_HTTP_BODY_BYTES_PER_S` within each such window, however long all of it takes; one
    that does not is answered with a 408. Also how long a body is still received that was answered before its end."""

    http_body_bytes_per_s: int = Field(default=512, ge=1)
    """The slowest that a body may come, on average over a window."""

    http_unread_s: float = Field(default=60.0, gt=0)
    """A client that takes no byte of an answer for so long is disconnected, with a line in the log. Until then 256 KiB
    of the answer are kept for it at most, or one event that is larger, beside the system's own buffer of the socket. An
    event stream goes on from the last `id` that the client has."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """The port of `/metrics`, at the address of `SYNTH_HOST`; keep it inside your network. Unset, the port of the API
    serves it, to this machine alone (a proxy in `SYNTH_TRUSTED_PROXIES` names the machine that sent a request)."""

    open_requests_per_s: float = Field(default=20.0, gt=0)
    """Requests a second of one address for `/metrics` and `/openapi.json`, which need no key. The requests of five
    seconds may come at once; more is a 429."""

    http_buffered_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """Bytes of bodies that a process holds in memory at a time: more is a 503, to be sent again. One organisation may
    have half of it, so that no one fills it. Files are written as they come, and do not count."""

    trusted_proxies: str = "127.0.0.1,::1"
    """The proxies, as addresses and networks separated by commas, whose `X-Forwarded-For` is believed. The audit stream
    has the address that they name, and the connection's own address for all others."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        networks = [part.strip() for part in value.split(",") if part.strip()]
        for n, network in enumerate(networks, 1):
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(f"entry {n} is not an address or a network, such as 10.0.0.0/8") from None
        return ",".join(networks)

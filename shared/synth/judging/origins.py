"""Where a judge's key may be sent: an origin, which is scheme, host and port."""

from __future__ import annotations

import httpx


def origin_of(url: str) -> str | None:
    """The origin of a URL, such as `https://api.example.com:8443`, without a scheme's own port; None for none.

    It is read as the HTTP client reads it, so that no other host is called than the one that was looked at.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return None
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        return None
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host}" + ("" if parts.port is None else f":{parts.port}")

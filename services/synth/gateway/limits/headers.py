"""The response headers with each limit that applied to the request, and its remaining quota.

`RateLimit` and `RateLimit-Policy` follow the IETF's draft-ietf-httpapi-ratelimit-headers. OpenAI's headers are only for
the request limit.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Left(NamedTuple):
    """The rest of a limit. reset_s: seconds until it is full again; window_s: its window; None if unknown."""

    quota: int
    remaining: int
    reset_s: int | None = None
    window_s: int | None = None


#: The limits that applied to this context's request, by their names.
_MET: ContextVar[dict[str, Left] | None] = ContextVar("limits met", default=None)


def begin_request() -> dict[str, Left]:
    """Begin a request without limits, and return the dictionary that `note_limit` fills."""
    met: dict[str, Left] = {}
    _MET.set(met)
    return met


def note_limit(name: str, left: Left) -> None:
    """Note a limit that applied to this request."""
    met = _MET.get()
    if met is not None:
        met[name] = left


def limit_headers(met: dict[str, Left]) -> dict[str, str]:
    """Return the headers for the limits that applied to a request."""
    if not met:
        return {}
    headers = {
        "RateLimit-Policy": ", ".join(
            f'"{name}";q={left.quota}' + (f";w={left.window_s}" if left.window_s is not None else "")
            for name, left in met.items()
        ),
        "RateLimit": ", ".join(
            f'"{name}";r={max(0, left.remaining)}' + (f";t={left.reset_s}" if left.reset_s is not None else "")
            for name, left in met.items()
        ),
    }
    if (requests := met.get("requests")) is not None:
        headers |= {
            "X-RateLimit-Limit-Requests": str(requests.quota),
            "X-RateLimit-Remaining-Requests": str(requests.remaining),
            "X-RateLimit-Reset-Requests": f"{requests.reset_s}s",
        }
    return headers

"""The headers of an answer that name each limit which its request met, and what is left of it.

`RateLimit` and `RateLimit-Policy` are of the IETF's draft-ietf-httpapi-ratelimit-headers. OpenAI's are of requests.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Left(NamedTuple):
    """What is left of a limit. reset_s: until all of it is left again, window_s: in which it is; None where unknown."""

    quota: int
    remaining: int
    reset_s: int | None = None
    window_s: int | None = None


#: The limits that the request of this context has met, by their names.
_MET: ContextVar[dict[str, Left] | None] = ContextVar("limits met", default=None)


def begin_request() -> dict[str, Left]:
    """Begin with no limit met; returns what `note_limit` fills."""
    met: dict[str, Left] = {}
    _MET.set(met)
    return met


def note_limit(name: str, left: Left) -> None:
    """Note that this request has met a limit."""
    met = _MET.get()
    if met is not None:
        met[name] = left


def limit_headers(met: dict[str, Left]) -> dict[str, str]:
    """The headers for the limits that a request has met."""
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

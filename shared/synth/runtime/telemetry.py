"""One trace from submit to gradient step: a W3C traceparent that travels in the headers of HTTP and of events."""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[str | None] = ContextVar("traceparent", default=None)
_FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def current_traceparent() -> str | None:
    """Return the traceparent of the current work, in the form of the header."""
    return _current.get()


@contextmanager
def traced(parent: str | None) -> Generator[str]:
    """Run a block as a child of `parent`; starts a new trace if it is missing or not well formed."""
    trace = parent.split("-")[1] if parent and _FORM.fullmatch(parent) else secrets.token_hex(16)
    mine = f"00-{trace}-{secrets.token_hex(8)}-01"
    token = _current.set(mine)
    try:
        yield mine
    finally:
        _current.reset(token)

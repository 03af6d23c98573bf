"""The one reader of bodies: it checks the size before the bytes, and keeps no more bytes than the memory has room for.

Its caller has checked the credential before: no bytes of unknown clients are kept.
"""

from __future__ import annotations

from starlette.requests import Request

from synth.errors import Problem, Transient, UserError
from synth.fairness.memory import FairMemory, HeldBytes

#: The most digits of a Content-Length; more are no size.
_SIZE_DIGITS = 18


class BodyTooLarge(UserError):
    """A body of more bytes than a request of its kind may have."""

    def __init__(self, limit: int, setting: str, fix: str) -> None:
        what = f"the body is larger than {limit:,} bytes"
        super().__init__(Problem(what=what, expected=f"at most {limit:,} ({setting})", fix=fix, where="body"))


class BodyMemory(FairMemory):
    """The bodies of requests."""

    def take(self, held: HeldBytes, size: int) -> None:
        """Give `size` more bytes to a body. Raises `Transient` if there is no room now."""
        if not self.try_take(held, size):
            what = "too many large requests are being read (SYNTH_HTTP_BUFFERED_BYTES); send this one again"
            raise Transient(what, delay=1.0)


def declared_size(request: Request) -> int:
    """Return the size of the body that a request declares; 0 without one."""
    declared = request.headers.get("content-length", "")
    return int(declared[: _SIZE_DIGITS + 1]) if declared.isascii() and declared.isdigit() else 0


async def read_body(
    request: Request, memory: BodyMemory, held: HeldBytes, *, limit: int, setting: str, fix: str
) -> bytes:
    """Return the whole body. limit: in bytes; setting, fix: for the error of a larger one.

    Raises `BodyTooLarge`, `Transient` if there is no room for it now, and starlette's `ClientDisconnect`.
    """
    if declared_size(request) > limit:
        raise BodyTooLarge(limit, setting, fix)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:
            raise BodyTooLarge(limit, setting, fix)
        memory.take(held, len(chunk))
        body += chunk
    return bytes(body)

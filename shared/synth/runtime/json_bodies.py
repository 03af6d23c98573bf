"""Refuses a JSON body that would hold the event loop while it is decoded."""

from __future__ import annotations

import asyncio

from synth.errors import UserError
from synth.runtime.json_values import NO_MARKS, PIECE, has_more_values
from synth.runtime.off_loop import INLINE_BYTES, OffLoop

_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
#: Digits of numbers of a few thousand digits that cost a decoder as much as a value.
_DIGITS_PER_VALUE = 5


async def check_json_values(body: bytes, off_loop: OffLoop, *, limit: int, setting: str, org: str) -> None:
    """Refuse a body with more values than `limit`. Raises `UserError`.

    A quick upper bound is enough for nearly every body. For others a thread counts. setting: the limit's name.
    """
    if len(body) <= INLINE_BYTES:
        return
    most = 0
    for start in range(0, len(body), PIECE):
        piece = body[start : start + PIECE]
        most += len(piece.translate(None, NO_MARKS)) + len(piece.translate(None, _NO_DIGITS)) // _DIGITS_PER_VALUE
        await asyncio.sleep(0)
    if most < limit:
        return
    if await off_loop.thread(has_more_values, body, limit, org=org, size=len(body)):
        raise UserError(
            f"the body has more than {limit:,} JSON values (escapes and long numbers count too)",
            expected=f"at most {limit:,} ({setting})",
            fix="send less at once, or have the operator raise it",
            where="body",
        )

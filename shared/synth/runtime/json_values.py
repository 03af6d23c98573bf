"""Bounds what decoding a JSON body costs the event loop.

A decoder holds the GIL until it is done. The bytes of a text cost it little (32 MiB take 20 ms). Values, escapes and
long numbers take the time, up to 100 ns a value. So what is bounded is not the text but the number of values.
"""

from __future__ import annotations

import asyncio
import re

from synth.errors import Problem, UserError
from synth.runtime.off_loop import INLINE_BYTES, OffLoop

#: Bytes that are examined before other tasks have a turn.
_PIECE = 1 << 20
#: A value begins after one of these, an escape with the last.
_MARKS = b",:[{\\"
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
#: Escapes, and digits of numbers of a few thousand digits, that cost a decoder as much as a value.
_ESCAPES_PER_VALUE = 8
_DIGITS_PER_VALUE = 5
#: A string. One without an end extends to the end of the body, so that a search takes linear time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
#: The time to read a number grows with the square of its digits: 4,000 digits cost as much as 800 values.
_LONG_NUMBER = re.compile(rb"[0-9]{64,}+")
_SQUARED_DIGITS_PER_VALUE = 20_000


async def check_json_values(body: bytes, off_loop: OffLoop, *, limit: int, setting: str, org: str) -> None:
    """Refuse a body with more values than `limit`. Raises `UserError`, and what `OffLoop.process` raises.

    A quick upper bound is enough for nearly every body. For others a worker process counts. setting: the limit's name.
    """
    if len(body) <= INLINE_BYTES:
        return
    most = 0
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        most += len(piece.translate(None, _NO_MARKS)) + len(piece.translate(None, _NO_DIGITS)) // _DIGITS_PER_VALUE
        await asyncio.sleep(0)
    if most < limit:
        return
    values = await off_loop.process(count_values, body, org=org, size=len(body), task="count the body's JSON values")
    if values > limit:
        raise UserError(
            Problem(
                what=f"the body has {values:,} JSON values (escapes and long numbers count too)",
                expected=f"at most {limit:,} ({setting})",
                fix="send less at once, or have the operator raise it",
                where="body",
            )
        )


def count_values(body: bytes) -> int:
    """Return how many values and keys a JSON body has, with escapes and long numbers by what they cost."""
    outside = _STRING.sub(b"", body)
    digits = sum(len(number) ** 2 for number in _LONG_NUMBER.findall(outside))
    marks = len(outside.translate(None, _NO_MARKS))
    return 1 + marks + body.count(b"\\") // _ESCAPES_PER_VALUE + digits // _SQUARED_DIGITS_PER_VALUE

"""Counts the values of a JSON text, which bound what decoding it costs the event loop.

A decoder holds the GIL until it is done. The bytes of a text cost it little (32 MiB take 20 ms). Values, escapes and
long numbers take the time, up to 100 ns a value. So the number of values is bounded, not the size of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Bytes that are examined before other tasks have a turn.
PIECE = 1 << 18
#: A value begins after one of these, an escape with the last.
_MARKS = b",:[{\\"
_BACKSLASH = ord("\\")
NO_MARKS = bytes(set(range(256)) - set(_MARKS))
#: Escapes that cost a decoder as much as a value.
_ESCAPES_PER_VALUE = 8
#: The time to read a number grows with the square of its digits: 4,000 digits cost as much as 800 values.
_LONG_DIGITS = 64
_LONG_NUMBER = re.compile(rb"[0-9]{64,}+")
_SQUARED_DIGITS_PER_VALUE = 20_000


def has_more_values(text: bytes, limit: int) -> bool:
    """Return whether a JSON text has more than `limit` values and keys; escapes and long numbers count by their cost.

    It holds the GIL for some milliseconds at a time, and stops at the limit.
    """
    left, at = float(limit), 0
    while left > 0:
        start = text.find(b'"', at)
        for piece in _pieces(text, at, len(text) if start < 0 else start):
            left -= len(piece.translate(None, NO_MARKS))
            if len(piece) >= _LONG_DIGITS:
                left -= sum(len(number) ** 2 for number in _LONG_NUMBER.findall(piece)) / _SQUARED_DIGITS_PER_VALUE
            if left <= 0:
                return True
        if start < 0:
            return False
        at = _end_of_string(text, start)
        left -= sum(piece.count(b"\\") for piece in _pieces(text, start, at)) / _ESCAPES_PER_VALUE
    return True


def _pieces(text: bytes, start: int, end: int) -> Iterator[bytes]:
    return (text[at : min(at + PIECE, end)] for at in range(start, end, PIECE))


def _end_of_string(text: bytes, start: int) -> int:
    """Return the end of the string that begins at `start`: behind its quote, or the end of the text."""
    end = text.find(b'"', start + 1)
    while end >= 0:
        before = end
        while text[before - 1] == _BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        end = text.find(b'"', end + 1)
    return len(text)

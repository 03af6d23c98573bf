"""Lines of text: they end at CR, LF or CRLF, and nowhere else.

`str.splitlines` and the `iter_lines` of HTTP clients also split at U+0085, U+2028, U+2029 and six control characters,
which JSON, logs and replies of a model contain as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import AnyStr

_END = re.compile(r"\r\n|\r|\n")


def split_lines(text: AnyStr) -> list[AnyStr]:
    """Split text into lines without their ends; a final line end begins no further line."""
    if isinstance(text, bytes):
        return text.splitlines()  # of bytes, it splits at these three only
    lines = _END.split(text)
    return lines if lines[-1] else lines[:-1]


class LineReader:
    """Splits a body that arrives in pieces into its lines, without their ends."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield each line that ends in this piece."""
        # A CR that ends a piece has ended its line; an LF that begins the next piece belongs to it.
        lines = piece[self._after_cr and piece.startswith(b"\n") :].splitlines(keepends=True)
        self._after_cr = piece.endswith(b"\r") if piece else self._after_cr
        for line in lines:
            self._rest.append(line)
            if line.endswith((b"\r", b"\n")):
                yield self.end().rstrip(b"\r\n")

    def end(self) -> bytes:
        """Return the line that has not ended, and forget it."""
        line = b"".join(self._rest)
        self._rest.clear()
        return line


def read_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each line of a body that arrives in pieces, as soon as its end has arrived."""
    reader = LineReader()
    for piece in pieces:
        yield from reader.feed(piece)
    if rest := reader.end():
        yield rest

"""Server-sent events: the one reader and the one writer of the format.

https://html.spec.whatwg.org/multipage/server-sent-events.html. `httpx-sse` 0.4.2 and later split lines correctly too,
but drop comments, which are the signs of life that a follower waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from synth.runtime.lines import LineReader

# JSON may hold these unescaped, and readers that split at every Unicode line end would cut an event there.
_ESCAPES = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


@dataclass(frozen=True)
class SseEvent:
    """One server-sent event."""

    id: str
    event: str
    data: str


def data_event(value: Any) -> bytes:
    """Encode a value as an event that has data only."""
    return b"data: %s\n\n" % data_of(value)


def data_of(value: Any) -> bytes:
    """Encode a value as JSON on one line, for readers that split at Unicode line ends too."""
    data = msgspec.json.encode(value)
    for character, escape in _ESCAPES:
        data = data.replace(character, escape)
    return data


class SseReader:
    """Parses a body that arrives in pieces."""

    def __init__(self) -> None:
        self._lines = LineReader()
        self._id, self._event, self._data = "", "", list[str]()

    def feed(self, piece: bytes) -> Iterator[SseEvent | None]:
        """Yield each event that ends in this piece, and None for a comment, which is only a sign of life."""
        for raw in self._lines.feed(piece):
            line = raw.decode(errors="replace")
            if line.startswith(":"):
                yield None
            elif line:
                self._take(line)
            elif self._data or self._event:
                yield SseEvent(self._id, self._event, "\n".join(self._data))
                self._event, self._data = "", []

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id":
                self._id = value
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case _:
                pass

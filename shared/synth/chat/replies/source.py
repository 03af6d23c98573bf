"""Text that arrives in pieces, for grammars that are written as generators.

A grammar reads from a `TextSource` and yields if it needs more text; it is resumed when more has arrived, or when the
text has ended. So one function reads a whole text and a streamed one, and each character is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = re.compile(r"\s*")
# Outside of strings: characters that open or close something, and characters that JSON never has there.
_OUTSIDE = re.compile(r'["{}\[\]]|[^\s\w,:.+-]')
_INSIDE = re.compile(r'["\\]')


class TextSource:
    """The text so far. at: the start of the next read. ended: whether no more text will arrive."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def drop(self) -> None:
        """Forget the text that was read."""
        self.text, self.at = self.text[self.at :], 0

    def space(self) -> Reading[None]:
        """Skip white space."""
        while True:
            space = _SPACE.match(self.text, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self.text) or self.ended:
                return
            yield

    def takes(self, *marks: str) -> Reading[str]:
        """Read one of these marks; "" if none of them comes next."""
        longest = max(map(len, marks), default=0)
        while True:
            rest = self.text[self.at : self.at + longest]
            mark = next((mark for mark in marks if rest.startswith(mark)), "")
            if mark or self.ended or not any(mark.startswith(rest) for mark in marks):
                self.at += len(mark)
                return mark
            yield

    def up_to(self, *marks: str) -> Reading[str | None]:
        """Read the text before the first of these marks; None if the text ends without any."""
        start = scanned = self.at
        longest = max(map(len, marks))
        while True:
            hits = [at for at in (self.text.find(mark, scanned) for mark in marks) if at >= 0]
            if hits:
                self.at = min(hits)
                return self.text[start : self.at]
            if self.ended:
                self.at = len(self.text)
                return None
            scanned = max(start, len(self.text) - longest + 1)
            yield

    def json_object(self) -> Reading[str | None]:
        """Read the text of one JSON object, which ends with its own last brace; None if there is no whole one.

        Strings are read as strings, so that no mark in them ends anything.
        """
        if not (yield from self.takes("{")):
            return None
        start, depth, inside = self.at - 1, 1, False
        while depth:
            hit = (_INSIDE if inside else _OUTSIDE).search(self.text, self.at)
            if hit is None:
                self.at = len(self.text)
                if self.ended:
                    return None
                yield
                continue
            self.at = hit.end()
            if hit[0] == '"':
                inside = not inside
            elif hit[0] in "{[":
                depth += 1
            elif hit[0] in "}]":
                depth -= 1
            elif hit[0] == "\\":
                while self.at >= len(self.text) and not self.ended:
                    yield
                self.at += 1
            else:
                self.at -= 1
                return None
        return self.text[start : self.at]

"""The lines on which the keys and headers of a TOML text stand, which the parser does not report."""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]

#: Parts of one dotted key. tomllib's time grows with the cube of it: 41 KB of `a.a.a…` would cost 12 seconds.
MAX_DEPTH = 32
SPACE = " \t"
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def scan_lines(text: str) -> dict[Path, int]:
    """Return the line of each key and table header of valid TOML. Keys of an inline table have the table's line."""
    return Scanner(text).run()


class TooDeep(Exception):
    """A dotted key that would take too long to read. line: its line, from 1."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class Scanner:
    """Walks the statements of a document up to its first mistake, which tomllib will name; values are only skipped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self._counted_to = 0
        self.lines: dict[Path, int] = {}
        self.elements: dict[Path, int] = {}
        #: The brackets of the last value that are not closed.
        self.open: list[int] = []
        #: The start of the last string, if it is not closed.
        self.quote: int | None = None
        #: The line on which the key or header of the last statement stands for the first time, if it is repeated.
        self.repeats: int | None = None

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while self._to_statement():
            line = self._line()
            if self.text[self.at] == "[":
                table = self._header(line)
            else:
                path = table
                for key in self._keys():
                    path = (*path, key)
                    self.repeats = self.lines.get(path)
                    self.lines.setdefault(path, line)
                self.at += 1  # the equals sign
                self._skip_value()
        return self.lines

    def _line(self) -> int:
        # Counting continues from the last place; from the beginning, the time would grow with the square of a file's
        # length.
        self.line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self.line

    def _to_statement(self) -> bool:
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self._to_line_end()
            elif self.text[self.at] in " \t\n":
                self.at += 1
            else:
                return True
        return False

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _header(self, line: int) -> Path:
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        path: Path = ()
        keys = self._keys()
        for i, key in enumerate(keys):
            path = (*path, key)
            last = i == len(keys) - 1
            if array and last:
                self.elements[path] = self.elements.get(path, -1) + 1
            if path in self.elements:
                path = (*path, self.elements[path])
            if last:
                self.repeats = self.lines.get(path)
                self.lines[path] = line
            else:
                self.lines.setdefault(path, line)
        self._to_line_end()
        return path

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(SPACE)
            if self.text[self.at] in "\"'":
                start = self.at
                self._skip_string()
                keys.append(str(tomllib.loads(f"k = {self.text[start : self.at]}")["k"]))
            else:
                bare = _BARE.match(self.text, self.at)
                keys.append(bare[0] if bare else "")
                self.at += len(keys[-1])
            self._skip(SPACE)
            if self.text[self.at : self.at + 1] != ".":
                return keys
            if len(keys) == MAX_DEPTH:
                raise TooDeep(self._line())
            self.at += 1

    def _skip(self, characters: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in characters:
            self.at += 1

    def _skip_string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.quote = self.at
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            if self.at >= len(self.text):
                raise IndexError("a string without its end")
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        self.quote = None
        # Up to two quotes may stand right before the closing fence of a multi-line string.
        if len(fence) == 3:
            self._skip(quote)

    def _skip_value(self) -> None:
        self.open = []
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in "\"'":
                self._skip_string()
            elif c == "#":
                self._to_line_end()
            elif c == "\n" and not self.open:
                return
            else:
                if c in "[{":
                    self.open.append(self.at)
                elif c in "]}" and self.open:
                    self.open.pop()
                self.at += 1

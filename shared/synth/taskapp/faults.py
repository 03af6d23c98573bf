"""Describe an error of a task app's own code to its author: with the lines of that code, without the SDK's."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from synth.runtime.lines import split_lines

#: The last calls of an endless recursion are enough.
_MOST_FRAMES = 8
_LONGEST_TEXT = 2000
_SYNTH = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib")})


@dataclass(frozen=True)
class CodeLine:
    """A line of the author's code that was running. file: relative to the working directory if that is shorter."""

    file: str
    line: int
    function: str
    source: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Fault:
    """An exception. frames: of the author's own code, the raising one last; raised_in: the library that raised it."""

    what: str
    frames: list[CodeLine]
    raised_in: str = ""

    @property
    def place(self) -> str:
        """The author's own line, "" if none was running."""
        return self.frames[-1].place if self.frames else ""

    def lines(self) -> list[str]:
        """Return the last lines of a traceback: place and source of each call, then the exception."""
        shown = [part for f in self.frames for part in (f"{f.place}, in {f.function}", f"  {f.source}") if part.strip()]
        return [*shown, *split_lines(self.what), *([f"raised in {self.raised_in}"] if self.raised_in else [])]

    def text(self) -> str:
        return "\n".join(self.lines())


def fault_of(error: BaseException) -> Fault:
    """Describe an exception to the author of the code that raised it, or that called the raising code."""
    shown = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    cause = error.__cause__
    if cause is not None:
        place = fault_of(cause).place
        shown += f"\nfrom {type(cause).__name__}: {cause}" + (f" ({place})" if place else "")
    if isinstance(error, SyntaxError) and error.filename:
        source = (error.text or "").strip()
        return Fault(shown[:_LONGEST_TEXT], [CodeLine(_short(error.filename), error.lineno or 1, "<module>", source)])
    frames = [*_frames(error.__traceback__)]
    own = [frame for path, frame in frames if is_own(path)]
    last = frames[-1] if frames else None
    raised_in = "" if last is None or is_own(last[0]) or not own else _library_place(*last)
    return Fault(shown[:_LONGEST_TEXT], own[-_MOST_FRAMES:], raised_in)


def fault_at(function: Any, what: str) -> Fault:
    """Return a fault without an exception, with the definition of the author's function as its place."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return Fault(what, [])
    linecache.checkcache(code.co_filename)
    # A function's first line is its first decorator's.
    lines = linecache.getlines(code.co_filename)
    definition = re.compile(rf"\s*(async\s+)?def\s+{code.co_name}\b")
    after = range(code.co_firstlineno, len(lines) + 1)
    line = next((n for n in after if definition.match(lines[n - 1])), code.co_firstlineno)
    source = lines[line - 1].strip() if line <= len(lines) else ""
    return Fault(what, [CodeLine(_short(code.co_filename), line, code.co_name, source)])


def is_own(path: str) -> bool:
    """Return whether a file is the author's: neither of this package, nor of Python, nor of an installed library."""
    if path.startswith("<"):
        return False
    resolved = str(Path(path).resolve())
    inside = (_SYNTH, *_LIBRARIES, *(f"{p}" for p in sys.path if p.endswith("site-packages")))
    return not any(resolved.startswith(f"{folder}/") for folder in inside) and "site-packages" not in resolved


def _frames(tb: TracebackType | None) -> Iterator[tuple[str, CodeLine]]:
    # A file that was saved again since it was read has other lines by now.
    linecache.checkcache()
    for frame in traceback.extract_tb(tb):
        shown = CodeLine(_short(frame.filename), frame.lineno or 0, frame.name, (frame.line or "").strip())
        yield frame.filename, shown


def _library_place(path: str, frame: CodeLine) -> str:
    parts = Path(path).parts
    at = max((i for i, part in enumerate(parts) if part in ("site-packages", "synth")), default=len(parts) - 2)
    start = at + 1 if parts[at] == "site-packages" else at
    return f"{'/'.join(parts[start:])}:{frame.line}"


def _short(path: str) -> str:
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return path

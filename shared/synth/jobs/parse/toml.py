"""Job files: parse TOML text to plain data that keeps the line of each key."""

from __future__ import annotations

import datetime
import math
import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from synth.errors import Problem, UserError
from synth.jobs.parse.scanner import MAX_DEPTH, Path, TooDeep, scan_lines
from synth.jobs.parse.syntax import syntax_problem

_INT64 = 2**63
#: Levels of tables and lists inside each other. Every reader of a job recurses as deep as this.
_MAX_NESTING = 64
#: Values that are not finite numbers: the most that are named one by one.
_MAX_PROBLEMS = 100


@dataclass(frozen=True)
class Document:
    """A job as data: JSON types only (dates as ISO text), every number finite and within 64 bits.

    name: a file's path or an endpoint, as the user knows it. lines: the line of each key and header, from 1.
    format: "json" is the payload of a published client, whose other keys its user cannot change.
    misspelt: of each key that is read as another, that other's path and its own, outer tables first.
    flags: of each key that the command line sets, the flag, which is then the key's place.
    """

    name: str
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict[Path, int])
    format: Literal["toml", "json"] = "toml"
    misspelt: dict[Path, Path] = field(default_factory=dict[Path, Path])
    flags: dict[Path, str] = field(default_factory=dict[Path, str])

    def where(self, path: Path) -> str:
        """Return the place of a key, present or missing: `configs/rl.toml:14 [model].base`."""
        path = self._as_written(path)
        above = [path[:n] for n in range(len(path), 0, -1)]
        flag = next((self.flags[p] for p in above if p in self.flags), None)
        if flag is not None:
            return flag
        line = next((self.lines[p] for p in above if p in self.lines), None)
        place = f"{self.name}:{line}" if line else self.name
        return f"{place} {self.label(path)}".rstrip()

    def label(self, path: Path) -> str:
        """Return the name of a key: `[model].base`."""
        path = self._as_written(path)
        if not path:
            return ""
        keys = [f"[{p}]" if isinstance(p, int) else f".{p}" for p in path]
        if len(path) == 1 and not (path[0] in self.data and not isinstance(self.data[str(path[0])], dict)):
            return f"[{path[0]}]"
        if isinstance(self.get(path), dict):
            return f"[{''.join(keys).lstrip('.')}]"
        # The keys up to the last table are the header, the other keys are below it.
        depth = next((n for n in range(len(path) - 1, 0, -1) if isinstance(self.get(path[:n]), dict)), 0)
        if depth == 0 and len(path) > 1 and path[0] not in self.data:
            depth = len(path) - 1
        if depth == 0:
            return "".join(keys).lstrip(".")
        return f"[{''.join(keys[:depth]).lstrip('.')}]{''.join(keys[depth:])}"

    def _as_written(self, path: Path) -> Path:
        for good, bad in self.misspelt.items():
            if path[: len(good)] == good:
                path = (*bad, *path[len(good) :])
        return path

    def get(self, path: Path) -> Any:
        """Return the value at a path; None if there is none."""
        value: Any = self.data
        for part in path:
            if isinstance(value, dict) and part in value:
                value = cast(dict[Any, Any], value)[part]
            elif isinstance(value, list) and isinstance(part, int) and part < len(cast(list[Any], value)):
                value = cast(list[Any], value)[part]
            else:
                return None
        return value


def read_toml(
    text: str | bytes, *, name: str, lines: dict[Path, int] | None = None, flags: dict[Path, str] | None = None
) -> Document:
    """Parse a job file. Raises UserError with the line of text that is not TOML, or that JSON cannot hold.

    lines, flags: as in `Document`, for a text into which the command line has put keys. `lines` are the lines of the
    user's file without them.
    """
    if isinstance(text, bytes):
        text = _decode(text, name)
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    lines = _lines(text, name) if lines is None else lines
    try:
        return _document(tomllib.loads(text), name, lines, "toml", flags or {})
    except tomllib.TOMLDecodeError as error:
        raise UserError(syntax_problem(str(error), text, name)) from error
    except RecursionError as error:
        raise UserError(Problem(what="this TOML is nested too deeply to read", where=name)) from error
    except ValueError as error:
        raise UserError(Problem(what=f"not valid TOML: {error}", where=name)) from error


def _lines(text: str, name: str) -> dict[Path, int]:
    try:
        return scan_lines(text)
    except TooDeep as deep:
        problem = Problem(
            what=f"a key of more than {MAX_DEPTH} parts",
            expected="keys of a few parts, such as training.lora.r",
            where=f"{name}:{deep.line}",
        )
        raise UserError(problem) from deep
    except (IndexError, ValueError):
        # Not TOML: tomllib reports the place and the reason.
        return {}


def read_data(data: dict[str, Any], *, name: str) -> Document:
    """Read a job that came as JSON (an API payload) by the same rules; its places have no line."""
    return _document(data, name, {}, "json", {})


def _decode(body: bytes, name: str) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise UserError(
            Problem(
                what=f"byte {error.start} (0x{body[error.start]:02x}) is not UTF-8",
                expected="a TOML file in UTF-8",
                where=f"{name}:{line}",
            )
        ) from error


def _document(
    raw: dict[str, Any],
    name: str,
    lines: dict[Path, int],
    format: Literal["toml", "json"],
    flags: dict[Path, str],
) -> Document:
    problems: list[tuple[Path, str]] = []
    try:
        data = _plain(raw, (), problems)
    except _TooNested as deep:
        document = Document(name=name, data=raw, lines=lines, format=format, flags=flags)
        problem = Problem(
            what=f"tables and lists are nested too deeply: more than {_MAX_NESTING} in each other",
            expected="a job file as the examples show it",
            where=document.where(deep.path[:1]),
        )
        raise UserError(problem) from deep
    document = Document(name=name, data=data, lines=lines, format=format, flags=flags)
    if problems:
        shown = problems[:_MAX_PROBLEMS]
        raise UserError([Problem(what=what, where=document.where(path)) for path, what in shown])
    return document


def _plain(value: Any, path: Path, problems: list[tuple[Path, str]]) -> Any:
    if len(path) > _MAX_NESTING:
        raise _TooNested(path)
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        return {k: _plain(v, (*path, k), problems) for k, v in table.items()}
    if isinstance(value, list):
        return [_plain(v, (*path, i), problems) for i, v in enumerate(cast(list[Any], value))]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        problems.append((path, f"{value} is not a finite number"))
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        problems.append((path, "this integer does not fit into 64 bits"))
    return value


class _TooNested(Exception):
    """A value that is nested too deeply. path: its place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

"""The rules of a training file's line: one conversation, or one preference pair, as JSON.

{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…", "weight": 1}], "tools": […]}

Or one prompt for a grader's job: messages that end with the user's, and the fields that the grader refers to. Rows of
other shapes (`synth.datasets.shapes`) become one of these by the rules of `synth.datasets.rows`; only they, and rows
with images, are written again.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

import msgspec

from synth.datasets.rows import Row, Unread, read_row
from synth.datasets.turns import BadRow
from synth.events import LineProblem

_LIST = "a JSON list; expected an object on each line; make them of a list: jq -c '.[]' FILE > rows.jsonl"
_OBJECT = 'expected an object on each line, such as {"messages": […]}'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BYTE = re.compile(r"\(byte (\d+)\)")
_CONSTANTS = (b"NaN", b"Infinity")


class LineFault(NamedTuple):
    """The fault of a line. path: the place in it, as `$.messages[0].role`. unread: columns that are not read."""

    path: str
    reason: str
    unread: tuple[str, ...] = ()


def read_line(line: bytes) -> Row | LineFault:
    """Return the row on a line, or its fault."""
    try:
        return _read(line)
    except Unread as error:
        return LineFault(error.path, error.reason, tuple(error.names))
    except BadRow as error:
        return LineFault(error.path, error.reason)


def canonical_line(line: bytes) -> bytes:
    """Return a checked line in the form that is trained on: the same bytes, unless it came in another shape."""
    row = _read(line)
    return msgspec.json.encode(row.data) if row.shape else line


def line_problem(number: int, fault: tuple[str, str] | LineFault) -> LineProblem:
    """Return a problem with its line, counted from 1."""
    return LineProblem(line=number, path=fault[0][:200], reason=fault[1][:300])


def _read(line: bytes) -> Row:
    """Return the row on a line. Raises `BadRow`."""
    try:
        # The decoder does not look into values that it skips.
        line.decode()
        decoded: Any = msgspec.json.decode(line)
        if isinstance(decoded, list):
            raise BadRow("$", _LIST)
        if not isinstance(decoded, dict):
            raise BadRow("$", f"Expected `object`, got `{type(decoded).__name__}`")
        return read_row(line, cast(dict[str, Any], decoded))
    except UnicodeDecodeError as error:
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise BadRow("$", "the file is UTF-16; save it as UTF-8") from error
        raise BadRow("$", f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}") from error
    except RecursionError as error:
        raise BadRow("$", "nested too deeply") from error
    except msgspec.ValidationError as error:
        raise BadRow("$", "a number that is too large for a float; write it as a text") from error
    except msgspec.DecodeError as error:
        raise BadRow("$", _malformed(line, str(error))) from error


def _malformed(line: bytes, reason: str) -> str:
    if line.startswith(_BYTE_ORDER_MARK):
        return "the line begins with a byte order mark; save the file as UTF-8 without one"
    if reason.startswith("Input data was truncated"):
        if line.lstrip().startswith(b"["):
            return _LIST
        if line.rstrip().endswith(b"}"):
            return "not JSON: a text is not closed, or a \\u escape is one half of a surrogate pair"
        return "not JSON: the line ends too early; expected a whole conversation on each line"
    at = _BYTE.search(reason)
    rest = line[int(at[1]) :] if at else b""
    if (constant := next((c for c in _CONSTANTS if rest.startswith(c)), None)) is not None:
        return f"not JSON: {constant.decode()} at byte {at[1] if at else ''}; write null, or leave the key out"
    if "surrogate" in reason:
        return "not JSON: a \\u escape is one half of a surrogate pair"
    return f"not JSON: {reason.removeprefix('JSON is malformed: ')}; {_OBJECT}"

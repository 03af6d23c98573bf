"""Reads JSON that a model, a task app or a training file holds: any fault in it is one exception."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from json.scanner import py_make_scanner  # pyright: ignore
from typing import Any, cast

#: How deep a conversation may be nested as a template takes it: Python's stack, which a template's code runs on, has an
#: end at a thousand frames. No client's JSON comes near it.
MAX_NESTING = 200
#: How deep a tool, a call's arguments or another object in it may be, so that the levels around it never count.
MAX_VALUE_NESTING = MAX_NESTING // 2


#: A longer text is read by Python code, which other threads interrupt: the C code holds the GIL to the end of the text.
_C_CALL = 64 << 10


class BadJson(ValueError):
    """The text is not JSON."""


class _PythonDecoder(json.JSONDecoder):
    """Reads lists, objects and numbers in Python."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scan_once: Any = py_make_scanner(self)


def read_json(text: str) -> Any:
    """Return the value of a JSON text. Raises `BadJson`, also for NaN and infinities, which JSON does not have."""
    try:
        return json.loads(text, parse_constant=refuse_constant, cls=None if len(text) <= _C_CALL else _PythonDecoder)
    # Text that is nested deeply enough ends the parser with a RecursionError.
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error)) from error


def tool_arguments(value: Any) -> dict[str, Any]:
    """Return the object of a tool call's arguments: a dict unchanged, or the JSON object in a text.

    None, a blank text and the text `null` are the empty object: a call of a function without parameters is written so.
    Raises `BadJson` for anything else: a list, a number, broken JSON, half of a surrogate pair, or an object of more
    than `MAX_VALUE_NESTING` levels.
    """
    if isinstance(value, str):
        value = _object_in(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadJson(f"a JSON {_KINDS.get(type(value).__name__, 'value')}, not an object")
    if is_too_deep(value, MAX_VALUE_NESTING):
        raise BadJson(f"nested deeper than {MAX_VALUE_NESTING} levels")
    return cast(dict[str, Any], value)


_KINDS = {"list": "list", "str": "string", "bool": "boolean", "int": "number", "float": "number"}


def _object_in(text: str) -> Any:
    value = read_json(text)
    try:
        if "\\u" in text:
            # Half of a surrogate pair is a JSON text, and no UTF-8.
            json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise BadJson("a \\u escape is one half of a surrogate pair, or it is nested too deeply") from error
    return value


def repeated_key(text: str | bytes, value: Any) -> str | None:
    """Return a key that one object of a JSON text has twice, of which `value` has the last; None without one.

    value: the text, decoded.
    """
    # Each key ends with a quote and a colon, and few other quotes stand before one: only a text with more of them than
    # the value has keys is read again, slowly.
    ends = _KEY_END.findall(text) if isinstance(text, str) else _KEY_END_BYTES.findall(text)
    if len(ends) <= _count_keys(value):
        return None
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        names = set[str]()
        for name, _ in pairs:
            if name in names and not repeated:
                repeated.append(name)
            names.add(name)

    json.loads(text, object_pairs_hook=note)
    return repeated[0] if repeated else None


_KEY_END = re.compile(r'"\s*:')
_KEY_END_BYTES = re.compile(rb'"\s*:')


def _count_keys(value: Any) -> int:
    # Every row is counted: a stack of containers alone is several times as fast as levels of all values.
    count, rest = 0, [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            count += len(cast(dict[str, Any], item))
        for child in _children(item):
            if isinstance(child, (dict, list)):
                rest.append(child)
    return count


def refuse_constant(constant: str) -> Any:
    """Raise `BadJson`, as a `parse_constant` of the json module."""
    raise BadJson(f"{constant} is not JSON")


def write_json(value: Any) -> str:
    """Return the JSON text of a value. Raises `BadJson` when it is nested too deeply to be written."""
    try:
        return json.dumps(value)
    except RecursionError as error:
        raise BadJson(str(error)) from error


def is_too_deep(value: Any, limit: int) -> bool:
    """Return whether a JSON value has more than `limit` levels of lists and objects."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value).values()
    return cast(list[Any], value) if isinstance(value, list) else ()

"""Reading JSON that a model or a task app wrote: whatever is wrong with it is one exception."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

#: How deep a message, a tool or a call's arguments may be nested: no client's are, and Python's stack has an end.
MAX_NESTING = 200


class BadJson(ValueError):
    """The text is not JSON."""


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises `BadJson`, also for NaN and infinities, which JSON has not."""
    try:
        return json.loads(text, parse_constant=_refuse)
    # Text that is nested deeply enough ends the parser with a RecursionError.
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error)) from error


def _refuse(constant: str) -> Any:
    raise BadJson(f"{constant} is not JSON")


def write_json(value: Any) -> str:
    """JSON text of a value that was read. Raises `BadJson` when it is nested too deeply to be written."""
    try:
        return json.dumps(value)
    except RecursionError as error:
        raise BadJson(str(error)) from error


def is_too_deep(text: str, limit: int = MAX_NESTING) -> bool:
    """Whether a JSON text has more than `limit` levels of lists and objects. Raises `BadJson`."""
    # Nearly every text is decided by this count.
    if text.count("{") + text.count("[") <= limit:
        return False
    level: list[Any] = [read_json(text)]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
    return any(isinstance(item, dict | list) for item in level)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value).values()
    return cast(list[Any], value) if isinstance(value, list) else ()

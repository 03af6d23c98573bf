"""Reading JSON that a model or a task app wrote: whatever is wrong with it is one exception."""

from __future__ import annotations

import json
from typing import Any


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

"""Whether a reply has the form that its request demands: structured output, and calls of the tools that it has."""

from __future__ import annotations

import json
from typing import Any, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from synth.cli.sampling.rows import PromptRow, text_of

Json = dict[str, Any]

_NO_OTHERS: Registry[Any] = Registry()


def format_problem(row: PromptRow, message: Json) -> str | None:
    """Return the fault of a reply's structured output, "" for a valid one; None for a row without.

    A row has structured output if its `response_format` is a JSON one, or if its own reply is a JSON object.
    """
    kind = (row.response_format or {}).get("type")
    if kind not in ("json_object", "json_schema") and not _is_object(text_of(row.reference or {})):
        return None
    if message.get("tool_calls"):
        return ""
    try:
        value = json.loads(text_of(message))
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    if kind == "json_schema":
        schema = cast(Json, (row.response_format or {}).get("json_schema") or {}).get("schema")
        return _schema_problem(value, schema)
    return "" if isinstance(value, dict) else "JSON, and no object"


def calls_problem(row: PromptRow, message: Json) -> str | None:
    """Return the fault of a reply's tool calls, "" for valid ones; None if neither it nor the row's reply calls.

    A call is valid if the row has its tool, and its arguments are an object that fits the tool's schema. A reply
    without a call is wrong if the row's own reply calls a tool.
    """
    calls = cast(list[Any], message.get("tool_calls") or [])
    if not calls:
        return "no tool call" if (row.reference or {}).get("tool_calls") else None
    tools = {str(tool.get("function", tool).get("name")): tool.get("function", tool) for tool in row.tools}
    read = read_calls(message)
    if read is None:
        return "the arguments are no JSON object"
    for name, arguments in read:
        if name not in tools:
            return f"there is no tool {name[:60]!r}"
        if problem := _schema_problem(arguments, tools[name].get("parameters")):
            return f"{name}: {problem}"
    return ""


def read_calls(message: Json) -> list[tuple[str, Json]] | None:
    """Return the names and arguments of a message's tool calls; None if arguments are no JSON object."""
    calls: list[tuple[str, Json]] = []
    for call in cast(list[Json], message.get("tool_calls") or []):
        function = cast(Json, call.get("function") or call)
        arguments: Any = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return None
        if not isinstance(arguments, dict | None):
            return None
        calls.append((str(function.get("name")), cast(Json, arguments or {})))
    return calls


def _schema_problem(value: Any, schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    try:
        # Its own registry: the default one fetches the addresses that a schema refers to.
        Draft202012Validator(cast(Json, schema), registry=_NO_OTHERS).validate(value)
    except ValidationError as error:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        return f"{place or 'the value'}: {error.message}"[:200]
    except (SchemaError, Unresolvable, RecursionError):
        # A schema that cannot be read bounds nothing.
        return ""
    return ""


def _is_object(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False

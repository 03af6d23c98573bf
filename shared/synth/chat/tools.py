"""The functions that a request offers, and the types of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

Tools = Sequence[dict[str, Any]]


def functions_of(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """Return a request's functions by their names; the flat form without `function` around it is read too."""
    functions: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = as_object(tool.get("function", tool))
        if isinstance(function.get("name"), str):
            functions[function["name"]] = function
    return functions


def parameters_of(function: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the schema of each parameter of a function."""
    properties = as_object(as_object(function.get("parameters")).get("properties"))
    return {key: as_object(schema) for key, schema in properties.items()}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a value of this schema may be a string; a schema that names no type allows one."""
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return any(is_text(as_object(part)) for part in schema[key])
    if "const" in schema or isinstance(schema.get("enum"), list):
        return any(isinstance(value, str) for value in schema.get("enum", [schema.get("const")]))
    type = schema.get("type")
    if isinstance(type, list):
        return "string" in type
    return type == "string" or (type is None and "$ref" not in schema)


def as_object(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else {}."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}

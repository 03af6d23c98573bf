"""Compiles a JSON schema in a process of its own, because a schema can make the compiler take all memory, or for ever.

`synth.sandbox.decoders` calls `check_schema` in a fork. It imports nothing but llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from llguidance import LLMatcher

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
_DEFINITIONS = ("$defs", "definitions", "x-guidance")


def check_schema(body: bytes, write: Callable[[bytes], None]) -> None:
    """Write one line of JSON for a schema: {"error", "path", "warnings"}."""
    root: dict[str, Any] = json.loads(body)
    error, warnings = check(root)

    def answer(path: str) -> None:
        write(json.dumps({"error": error, "warnings": warnings, "path": path}).encode() + b"\n")

    answer("")
    if error:
        # A second answer, which may be too late: the place of the error.
        answer(find_place(root, error))


def check(schema: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the error of a schema, in llguidance's words ("" if none), and which of its keywords are ignored."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(schema)
    except ValueError as error:
        return str(error), []
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return (messages[0], []) if failed else ("", messages)


def find_place(root: dict[str, Any], error: str) -> str:
    """Return the path of the innermost part of the schema that gives the same error by itself, as `.properties.a`."""
    beside = {name: root[name] for name in _DEFINITIONS if name in root}
    place, part = "", root
    while True:
        for path, inner in _parts(part):
            if isinstance(inner, dict) and check({**beside, **inner})[0] == error:
                place, part = place + path, inner
                break
        else:
            return place


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _NAMED:
        named = schema.get(key)
        for name, inner in named.items() if isinstance(named, dict) else ():
            yield f".{key}.{name}", inner
    for key in _LISTED:
        listed = schema.get(key)
        for i, inner in enumerate(listed if isinstance(listed, list) else ()):
            yield f".{key}[{i}]", inner
    for key in _SINGLE:
        yield f".{key}", schema.get(key)

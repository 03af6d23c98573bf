"""What a decoder returns from its own process is what it returns here, to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from synth.inference.grammar.compiler import schema_decoders
from synth.inference.grammar.schema_check import check_schema

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"right": {"type": "boolean"}, "why": {"enum": ["ä", "b"]}},
        "required": ["right"],
    },
    {"type": "no such type"},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "nope"}}}},
    {"type": "string", "pattern": "(?=x)"},
    {"type": "array", "minItems": 5, "items": {"type": "number", "multipleOf": 0.1}},
    {"allOf": [{"type": "object"}, {"if": {"type": "string"}}], "x-guidance": {"lenient": True}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_a_schema_is_checked_as_here(schema: dict[str, Any]) -> None:
    body, here = json.dumps(schema).encode(), list[bytes]()
    check_schema(body, here.append)
    there = await schema_decoders("auto").call(body, seconds=60.0, cpu_s=10, map_bytes=1 << 30)
    assert there == b"".join(here)

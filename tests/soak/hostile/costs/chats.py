"""Chats that cost much for one request: schemas and templates at the limits of the settings."""

from __future__ import annotations

import json
import random
from typing import Any

from synth.inference.settings import InferenceSettings

_SETTINGS = InferenceSettings()
#: Bytes of a request beside its schema or messages.
_AROUND = 2048

Case = tuple[str, dict[str, Any]]
"""What costs, and the fields of a chat beside its model."""


def schema_chats(rng: random.Random) -> list[Case]:
    """Chats whose reply has to follow a schema of `SYNTH_MAX_SCHEMA_BYTES`, or calls of tools with such schemas."""
    return [(name, _answer(schema)) for name, schema in schemas(rng).items()] + _tool_chats(rng)


def schemas(rng: random.Random) -> dict[str, dict[str, Any]]:
    """Schemas of nearly the largest size, by what they have much of."""
    size, depth = _SETTINGS.max_schema_bytes - 256, _SETTINGS.max_schema_depth - 4
    # A compiled schema is kept: each input is another one.
    salt = f"{rng.randrange(1 << 40):x}"
    wide = {f"{salt}{i}": {"type": "string"} for i in range(size // 40)}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(depth // 2):
        deep = {"type": "object", "properties": {salt: deep}}
    repeated = f"({salt}|" + "(a|b)?" * 20 + f"){{0,{size // 4}}}"
    tree: dict[str, Any] = {"type": "integer"}
    for level in range(8):
        tree = {"type": "object", "properties": {f"{salt}{level}{i}": tree for i in range(3 if level < 5 else 1)}}
    lists: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        lists = {"type": "array", "items": lists, "minItems": 3}
    choices: dict[str, Any] = {"const": salt}
    for i in range(depth // 2 - 1):
        choices = {"anyOf": [choices, {"type": "array", "items": {"enum": [i, salt]}}]}
    numbers = {f"{salt}{i}": {"type": "integer", "minimum": -(2**52), "maximum": 2**52 + i} for i in range(300)}
    refs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 7 + 1) % 200}"}] * 4} for i in range(200)}
    return {
        "properties": {"type": "object", "properties": wide},
        "required properties": {
            "type": "object",
            "properties": dict(list(wide.items())[: size // 70]),
            "required": list(wide)[: size // 70],
        },
        "enum": {"enum": [f"{salt}{i}" for i in range(size // 24)]},
        "one long text": {"const": salt + "x" * (size - 60)},
        "nesting": deep,
        "a wide and deep tree": tree,
        "lists in one another": lists,
        "choices in one another": choices,
        "ranges of numbers": {"type": "object", "properties": numbers, "required": list(numbers)},
        "pattern properties": {
            "type": "object",
            "patternProperties": {f"^{salt}{i}(a|b)*$": {"type": "string"} for i in range(size // 60)},
        },
        "long texts": {"type": "string", "minLength": 10**9, "maxLength": 10**9 + 1, "title": salt},
        "a recursion": {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        "alternatives": {"anyOf": [{"type": "object", "properties": {f"{salt}{i}": {}}} for i in range(size // 70)]},
        "patterns": {"type": "string", "pattern": "|".join(f"{salt}{i}.*" for i in range(size // 24))},
        "repeated pattern": {"type": "string", "pattern": repeated},
        "pattern of dots": {"type": "string", "pattern": f"^{salt}" + "(.*a){12}$"},
        "long array": {"type": "array", "minItems": 100_000, "items": {"type": "string", "minLength": 10_000}},
        "references": {"$defs": refs, "$ref": "#/$defs/d0", "title": salt},
        "unknown keywords": {f"{salt}{i}": i for i in range(size // 24)},
        "intersection": {"allOf": [{"type": "object", "properties": {f"{salt}{i}": {}}} for i in range(size // 70)]},
        "too large": {"enum": [f"{salt}{i}" for i in range(_SETTINGS.max_request_values // 2)]},
    }


def _answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "2+2?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }


def _tool_chats(rng: random.Random) -> list[Case]:
    salt = f"{rng.randrange(1 << 40):x}"
    schema = schemas(rng)["properties"]
    each = len(json.dumps(schema))
    user = [{"role": "user", "content": "2+2?"}]

    def tools(count: int, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        functions = [{"name": f"f{salt}_{i}", "parameters": parameters} for i in range(count)]
        return [{"type": "function", "function": function} for function in functions]

    many = _SETTINGS.max_request_values // 12
    full = min((_SETTINGS.max_request_bytes - _AROUND) // each, _SETTINGS.max_request_values // (each // 10))
    return [
        ("many tools", {"messages": user, "tools": tools(many, {})}),
        ("many tools, one forced", {"messages": user, "tools": tools(many, {}), "tool_choice": "required"}),
        ("large tools, one forced", {"messages": user, "tools": tools(full, schema), "tool_choice": "required"}),
    ]


def _described(text: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}


def template_chats(rng: random.Random) -> list[Case]:
    """Chats whose messages take much of the template, up to `SYNTH_MAX_REQUEST_BYTES` and `…_VALUES`."""
    size, values = _SETTINGS.max_request_bytes - _AROUND, _SETTINGS.max_request_values - 100
    salt, most = f"{rng.randrange(1 << 40):x}", _SETTINGS.max_prompt_characters - 100
    user = {"role": "user", "content": salt}
    call = {"type": "function", "id": "a", "function": {"name": "f", "arguments": json.dumps({"a": [0] * 1000})}}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = [user, {"role": "assistant", "content": "4"}]
    return [
        ("one long text", {"messages": [{"role": "user", "content": salt + "ab " * (size // 3)}]}),
        ("a text of the most characters", {"messages": [{"role": "user", "content": salt + "ab " * (most // 3)}]}),
        (
            "the same with wide ones",
            {"messages": [{"role": "user", "content": salt + "\U0001f600" + "ab " * (most // 3)}]},
        ),
        ("the most marks", {"messages": [{"role": "user", "content": salt + "<|im_start|>" * (most // 12)}]}),
        ("private characters", {"messages": [{"role": "user", "content": salt + "\U000f0000" * (values // 10)}]}),
        ("long tools", {"messages": [user], "tools": [_described("ab " * (most // 3))]}),
        ("items of a response", {"input": [user] * (values // 6)}),
        ("a long item of a response", {"input": salt + "ab " * (most // 3)}),
        ("one word", {"messages": [{"role": "user", "content": salt + "x" * size}]}),
        ("marks", {"messages": [{"role": "user", "content": salt + "<|im_start|>" * (size // 12)}]}),
        ("spaces", {"messages": [{"role": "user", "content": salt + " " * size}]}),
        ("characters of four bytes", {"messages": [{"role": "user", "content": salt + "\U0001f600" * (values // 10)}]}),
        ("turns", {"messages": turns * (values // 10)}),
        ("parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * (values // 6)}]}),
        ("calls", {"messages": [user, *([calls, {"role": "tool", "content": "4", "tool_call_id": "a"}] * 2000)]}),
        (
            "reasoning",
            {"messages": [user, {"role": "assistant", "reasoning": "<think>" * (size // 8), "content": "a"}]},
        ),
        ("unknown keys", {"messages": [user], **{f"{salt}{i}": 0 for i in range(values // 3)}}),
        ("keys of messages", {"messages": [{**user, **{f"{salt}{i}": 0 for i in range(values // 3)}}]}),
        ("settings", {"messages": [user], "chat_template_kwargs": {f"{salt}{i}": 0 for i in range(values // 3)}}),
        ("tokens", {"messages": [user], "logit_bias": {str(i): 1 for i in range(values // 3)}}),
        ("no token", {"messages": [user], "logit_bias": dict.fromkeys(map(str, range(320)), -100), "n": 16}),
        ("long ids of tokens", {"messages": [user], "logit_bias": {"9" * (size // 8): 1, "x" * (size // 8): 1}}),
        ("too many stop strings", {"messages": [user], "stop": ["x"] * (values // 2)}),
        ("empty stop strings", {"messages": [user], "stop": ["", "x" * size]}),
        ("short stop strings", {"messages": [user], "stop": ["a", "b", "c", "d"], "n": _SETTINGS.max_choices}),
        ("roles", {"messages": [{"role": f"r{i}", "content": "a"} for i in range(values // 6)]}),
        ("a long role", {"messages": [{"role": "x" * size, "content": "a"}]}),
        ("stop strings", {"messages": [user], "stop": ["x" * (size // 4)] * 4}),
        (
            "choices",
            {"messages": [user], "n": _SETTINGS.max_choices, "max_tokens": 8, "logprobs": True, "top_logprobs": 20},
        ),
    ]

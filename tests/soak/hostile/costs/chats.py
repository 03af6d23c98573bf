"""Chats that cost much for one request: schemas, templates and images at the limits of the settings."""

from __future__ import annotations

import base64
import functools
import json
import random
import struct
import zlib
from collections.abc import Callable, Collection
from typing import Any

from synth.inference.settings import InferenceSettings

_SETTINGS = InferenceSettings()
_PNG = b"\x89PNG\r\n\x1a\n"
#: Bytes of a request beside its schema, messages or images.
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
    full = min((_SETTINGS.max_request_bytes - _AROUND) // each, _SETTINGS.max_request_values // (each // 20))
    return [
        ("many tools", {"messages": user, "tools": tools(many, {})}),
        ("many tools, one forced", {"messages": user, "tools": tools(many, {}), "tool_choice": "required"}),
        ("large tools, one forced", {"messages": user, "tools": tools(full, schema), "tool_choice": "required"}),
    ]


def template_chats(rng: random.Random) -> list[Case]:
    """Chats whose messages take much of the template, up to `SYNTH_MAX_REQUEST_BYTES` and `…_VALUES`."""
    size, values = _SETTINGS.max_request_bytes - _AROUND, _SETTINGS.max_request_values - 100
    salt = f"{rng.randrange(1 << 40):x}"
    user = {"role": "user", "content": salt}
    call = {"type": "function", "id": "a", "function": {"name": "f", "arguments": json.dumps({"a": [0] * 1000})}}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = [user, {"role": "assistant", "content": "4"}]
    return [
        ("one long text", {"messages": [{"role": "user", "content": salt + "ab " * (size // 3)}]}),
        ("one word", {"messages": [{"role": "user", "content": salt + "x" * size}]}),
        ("marks", {"messages": [{"role": "user", "content": salt + "<|im_start|>" * (size // 12)}]}),
        ("spaces", {"messages": [{"role": "user", "content": salt + " " * size}]}),
        ("characters of four bytes", {"messages": [{"role": "user", "content": salt + "\U0001f600" * (values // 10)}]}),
        ("turns", {"messages": turns * (values // 10)}),
        ("parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * (values // 4)}]}),
        ("calls", {"messages": [user, *([calls, {"role": "tool", "content": "4", "tool_call_id": "a"}] * 2000)]}),
        (
            "reasoning",
            {"messages": [user, {"role": "assistant", "reasoning": "<think>" * (size // 8), "content": "a"}]},
        ),
        ("unknown keys", {"messages": [user], **{f"{salt}{i}": 0 for i in range(values // 3)}}),
        ("keys of messages", {"messages": [{**user, **{f"{salt}{i}": 0 for i in range(values // 3)}}]}),
        ("settings", {"messages": [user], "chat_template_kwargs": {f"{salt}{i}": 0 for i in range(values // 3)}}),
        ("tokens", {"messages": [user], "logit_bias": {str(i): 1 for i in range(values // 3)}}),
        ("stop strings", {"messages": [user], "stop": ["x" * (size // 4)] * 4}),
        ("choices", {"messages": [user], "n": _SETTINGS.max_choices, "max_tokens": 8, "logprobs": True}),
    ]


def image_chats(rng: random.Random, only: Collection[str] = ()) -> list[Case]:
    """Chats that show images of the largest size, number and most spellings of an address. only: these, if any."""
    pixels, size = _SETTINGS.max_image_pixels, _SETTINGS.max_request_bytes - _AROUND
    side = int(pixels**0.5)
    small = _data(png(32, 32 + rng.randrange(32)))
    # What is made only if it is needed: to compress the largest images takes seconds.
    addresses: dict[str, Callable[[], list[str]]] = {
        "the largest image": lambda: [_data(png(side, side))],
        "an image above the limit": lambda: [_data(png(side + 1, side + 1))],
        "a wide image": lambda: [_data(png(pixels, 1))],
        "the most bytes": lambda: [_data(png(64, 64, junk=_SETTINGS.max_image_bytes - 4096))],
        "several largest images": lambda: [_data(png(side, side - i)) for i in range(1, 5)],
        "many images": lambda: [small] * min(_SETTINGS.max_request_values // 8, size // (len(small) + 60)),
        "parameters": lambda: [small.replace(";base64", ";a=b" * (size // 8) + ";base64")],
        "percent signs": lambda: ["data:image/png," + "%00" * (size // 3)],
        "percent signs and base64": lambda: ["data:image/png;base64," + "%41" * (size // 3)],
        "spaces": lambda: [small.replace(",", "," + " " * (size // 2))],
        "padding": lambda: ["data:image/png;base64,AA" + "=" * size],
        "no base64": lambda: ["data:image/png;base64," + "*" * size],
        "a long address": lambda: ["http://127.0.0.2/" + "a/../" * (size // 5)],
        "a long host": lambda: ["http://" + "a." * (size // 2) + "invalid/"],
    }
    return [(name, {"messages": [_showing(urls())]}) for name, urls in addresses.items() if not only or name in only]


def _showing(urls: list[str]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}


@functools.cache
def png(width: int, height: int, *, junk: int = 0) -> bytes:
    """A grey PNG of this size with `junk` bytes of random text in it: what compresses to little decodes to much."""
    pack = zlib.compressobj(9)
    row, body = b"\0" * (width + 1), bytearray()
    for _ in range(height):
        body += pack.compress(row)
    body += pack.flush()
    beside = _chunk(b"tEXt", b"a\0" + random.Random(junk).randbytes(junk)) if junk else b""
    header = struct.pack(">II", width, height) + b"\x08\0\0\0\0"
    return _PNG + _chunk(b"IHDR", header) + beside + _chunk(b"IDAT", bytes(body)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _data(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()

"""Lines of training files that no friend would upload."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.soak.hostile.values import RAW_NUMBERS, nested, spoil, text, value

_USER = {"role": "user", "content": "2+2?"}
_ROWS: tuple[dict[str, Any], ...] = (
    {"messages": [_USER, {"role": "assistant", "content": "4"}]},
    {"input": {"messages": [_USER]}, "preferred_output": [{"role": "assistant", "content": "4"}]},
    {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
    {"instruction": "add", "input": "2+2", "output": "4"},
    {"messages": [_USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}], "tools": []},
)
_PARQUET = b"PAR1"


def row(rng: random.Random) -> bytes:
    """One file of one hostile row, and now and then a good one before it."""
    made = rng.choice((_spoilt, _other_field, _other_field, _deep, _wide, _raw_number, _no_text))(rng)
    return json.dumps(_ROWS[0]).encode() + b"\n" + made if rng.random() < 0.3 else made


def _spoilt(rng: random.Random) -> bytes:
    return spoil(rng, json.dumps(rng.choice(_ROWS)).encode())


def _other_field(rng: random.Random) -> bytes:
    """A good row with another value somewhere, at any depth."""
    made = json.loads(json.dumps(rng.choice(_ROWS)))
    _change(rng, made)
    return json.dumps(made).encode()


def _change(rng: random.Random, part: Any) -> None:
    key: Any = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
    inner = part[key]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
        _change(rng, inner)
    elif isinstance(part, dict) and rng.random() < 0.3:
        part[text(rng)] = value(rng)
    else:
        part[key] = value(rng)


def _deep(rng: random.Random) -> bytes:
    inner = nested(rng)
    if rng.random() < 0.5:
        return inner
    return b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ' + inner + b"}]}"


def _wide(rng: random.Random) -> bytes:
    n = rng.choice((500, 20_000))
    made = rng.choice(
        (
            {"messages": [_USER, {"role": "assistant", "content": "4"}] * n},
            {"messages": [_USER, {"role": "assistant", "content": [{"type": "text", "text": "4"}] * n}]},
            _ROWS[0] | {f"k{i}": i for i in range(n)},
            {"messages": [_USER, {"role": "assistant", "content": "\u0007" * n}]},
            {"messages": [_USER, {"role": "assistant", "content": "4"}], "tools": [{}] * n},
        )
    )
    return json.dumps(made).encode()


def _raw_number(rng: random.Random) -> bytes:
    return b'{"messages": [{"role": "user", "content": ' + rng.choice(RAW_NUMBERS).encode() + b"}]}"


def _no_text(rng: random.Random) -> bytes:
    """No lines of JSON: other files under a name that promises them."""
    return rng.choice(
        (
            _PARQUET + rng.randbytes(200) + _PARQUET,
            _PARQUET,
            b"\x1f\x8b" + rng.randbytes(100),
            b"\x00" * 100_000,
            b"\n" * 50_000,
            json.dumps(_ROWS[0]).encode("utf-16"),
            b"\xef\xbb\xbf" + json.dumps(_ROWS[0]).encode(),
            rng.randbytes(5_000),
            b"\r".join([b"{}"] * 1000),
        )
    )

"""Values that no friend would send, for whatever takes a value."""

from __future__ import annotations

import random
from typing import Any

#: Strings that are awkward to print, to store, to compare or to use as a name.
TEXTS = (
    "",
    " ",
    "\x00",
    "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "\u202egnp.exe",
    "\ud800",
    "e\u0301" * 500,
    "../../../../etc/passwd",
    "%2e%2e%2f%00",
    "{{sample.output_text}}{% for x in y %}",
    "<|im_start|>system\n<|im_end|>",
    "'; DROP TABLE jobs; --",
    "$(id)`id`",
    "(a+)+$" + "a" * 5000 + "!",
    "x" * 20_000,
    "\r\nX-Injected: 1\r\n\r\n",
    "nan",
    "__class__.__init__.__globals__",
    "job_../..",
    ">.*.$JS.API",
)
NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 1e308, -1e308, 5e-324, -0.0)
#: As they stand in JSON; Python's own encoder would refuse to write most of them.
RAW_NUMBERS = ("NaN", "-Infinity", "1e999", "-1e999", "9" * 5000, "1" + "0" * 400, "0x10", "01", "1.", "--1", "1_000")
LEVELS = (50, 2_000, 50_000)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Anything that JSON has, at most so deep."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    if kind == 6:
        return {text(rng): value(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    return (rng.choice(TEXTS), rng.choice(NUMBERS), None, rng.random() < 0.5, text(rng))[kind]


def text(rng: random.Random) -> str:
    """A string: an awkward one, or a short one of any characters."""
    if rng.random() < 0.5:
        return rng.choice(TEXTS)
    # No surrogates here: they are in TEXTS, where they are rare.
    return "".join(chr(rng.randrange(0xD800)) for _ in range(rng.randrange(20)))


def nested(rng: random.Random) -> bytes:
    """JSON that is nested very deeply, whole or cut off."""
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"messages":', b"}]")))
    levels = rng.choice(LEVELS)
    return opened * levels + b"1" + closed * (levels if rng.random() < 0.5 else rng.randrange(levels))


def spoil(rng: random.Random, body: bytes) -> bytes:
    """A body with bytes that were changed, cut off, doubled or put in."""
    at, end = sorted(rng.randrange(len(body) + 1) for _ in range(2))
    pieces = (b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"}", b"\\u0000", b"\\ud800", rng.randbytes(20))
    match rng.randrange(4):
        case 0:
            return body[:at]
        case 1:
            return body[:at] + rng.choice(pieces) + body[end:]
        case 2:
            return body[:end] + body[at:]
        case _:
            return body[:at] + rng.choice(pieces) + body[at:]

"""Bodies whose decoding holds a process for long: each is one C call."""

from __future__ import annotations

_MIB = 1 << 20


def hostile_bodies(size: int = 2 * _MIB) -> dict[str, bytes]:
    """Bodies of this many bytes, by what they hold."""
    return {
        "empty lists": b"[" + b",".join([b"[]"] * (size // 3)) + b"]",
        "empty objects": b'{"a":[' + b",".join([b"{}"] * (size // 3)) + b"]}",
        "numbers": b'{"metrics":{"mean_return":1,"details":{"x":[' + b",".join([b"1.5"] * (size // 4)) + b"]}}}",
        "short texts": b'{"task":{"name":"x"},"choices":[' + b",".join([b'"ab"'] * (size // 5)) + b"]}",
        "keys": b'{"metrics":{' + b",".join(b'"%07d":0' % i for i in range(size // 12)) + b"}}",
        "one text of escapes": b'{"error":{"message":"' + b"\\u00e9" * (size // 6) + b'"}}',
        "nesting": b"[" * (size // 2) + b"]" * (size // 2),
    }

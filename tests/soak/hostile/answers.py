"""Answers that no friendly server would give, as bytes on a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from typing import Any

from tests.soak.hostile.values import NUMBERS, RAW_NUMBERS, TEXTS, nested, spoil, value

_BOMB = gzip.compress(b"[" * (32 << 20), 9)
_NUMBER_FIELDS = ("mean_return", "outcome_score", "events_score", "episode_returns")


async def answer(rng: random.Random, writer: asyncio.StreamWriter, *, inside: list[str], hangs: bool) -> None:
    """Write one hostile answer. inside: where redirects lead. hangs: whether some do not end for a while."""
    kind = rng.randrange(0 if hangs else 2, 25)
    if kind == 0:
        # A byte at a time, until the client has had enough.
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"[")
            await writer.drain()
            await asyncio.sleep(0.05)
        return
    if kind == 1:
        # Nothing at all, for longer than a client waits.
        await asyncio.sleep(8)
        return
    writer.write(_whole(rng, kind, inside))
    await writer.drain()


def _whole(rng: random.Random, kind: int, inside: list[str]) -> bytes:
    match kind:
        case 2:
            return rng.randbytes(rng.choice((1, 300, 100_000)))
        case 3:
            return b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 2_000_000
        case 4:
            return b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 50_000 + b"\r\n"
        case 5 | 6:
            status = rng.choice((301, 302, 303, 307, 308))
            head = f"HTTP/1.1 {status} Go\r\nLocation: {rng.choice(inside)}\r\nContent-Length: 0\r\n\r\n"
            return head.encode("utf-8", "replace")
        case 7:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
            return head + b"Content-Length: %d\r\n\r\n" % len(_BOMB) + _BOMB
        case 8:
            chunks = (b"zz\r\nab\r\n", b"-5\r\n", b"ffffffffffffffff\r\nab", b"5\r\nab", b"2;" + b"x" * 100_000)
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + rng.choice(chunks)
        case 9:
            length = rng.choice(("-1", "9" * 30, "1e3", "5, 6", "abc", "1000000"))
            return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + b'{"healthy": true}'
        case 10:
            status = rng.choice((100, 101, 204, 205, 206, 304, 400, 401, 403, 418, 429, 500, 503, 599, 999, 99, 0))
            return b"HTTP/1.1 %d X\r\n" % status + _body(json.dumps({"detail": value(rng)}).encode())
        case 11:
            return b"HTTP/1.1 200 OK\r\n" + _body(nested(rng))
        case 12:
            return b"HTTP/1.1 200 OK\r\n" + _body(b'{"metrics": {"mean_return": 1.0, "details": ' + nested(rng) + b"}}")
        case 13:
            number = rng.choice(RAW_NUMBERS)
            return b"HTTP/1.1 200 OK\r\n" + _body(b'{"metrics": {"mean_return": ' + number.encode() + b"}}")
        case 14:
            return b"HTTP/1.1 200 OK\r\n" + _body(spoil(rng, json.dumps(rollout(rng)).encode()))
        case 15:
            return b"HTTP/1.1 200 OK\r\n" + _body(json.dumps({"task": {"name": "t"}} | _big(rng)).encode())
        case 16:
            return b"HTTP/1.1 200 OK\r\n" + _body(json.dumps(value(rng)).encode("utf-16"))
        case _:
            return b"HTTP/1.1 200 OK\r\n" + _body(json.dumps(rollout(rng)).encode())


def rollout(rng: random.Random) -> dict[str, Any]:
    """A rollout response, or a task's description, with values of all kinds in its fields."""
    metrics = {name: rng.choice((*NUMBERS, *TEXTS[:6], None, True, [])) for name in _NUMBER_FIELDS}
    fields = ("reward", "after_call", "info", "observation")
    steps = [{name: value(rng, 2) for name in fields} for _ in range(rng.randrange(4))]
    return {
        "healthy": value(rng, 1),
        "taskset": value(rng),
        "task": {"name": value(rng, 1)},
        "env_names": value(rng),
        "rubric": value(rng),
        "metrics": metrics | {"details": value(rng)},
        "trajectories": rng.choice(([{"steps": steps, "decision_samples": value(rng)}], value(rng))),
        "trace": value(rng),
        "aborted": value(rng, 1),
        "branches": value(rng),
    }


def _big(rng: random.Random) -> dict[str, Any]:
    match rng.randrange(3):
        case 0:
            return {"taskset": {"names": ["a"] * 300_000}}
        case 1:
            return {f"k{i}": i for i in range(100_000)}
        case _:
            return {"metrics": {"mean_return": 1.0, "details": {"text": "\x07" * 1_000_000}}}


def _body(body: bytes) -> bytes:
    return b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

"""Requests that no friend would send: a seeded generator of bytes for a socket, many kinds of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

PATHS = (
    "/api/jobs",
    "/api/jobs/check",
    "/api/keys",
    "/api/environment-keys",
    "/api/judge-keys",
    "/api/rl/jobs",
    "/api/learning/jobs",
    "/api/judge/v1/score",
    "/v1/fine_tuning/jobs",
    "/v1/fine_tuning/alpha/graders/run",
    "/v1/chat/completions",
    "/api/organisations",
    "/rollouts/trace_x/v1/chat/completions",
    "/keys/synth_url_x/v1/chat/completions",
    "/nowhere",
)
GETS = ("/api/jobs", "/api/files", "/v1/fine_tuning/jobs", "/v1/models", "/api/events", "/api/jobs/job_x/events")
_WORDS = ("", "a", "\x00", "\ud800", "ü" * 300, "../" * 50, "x" * 5000, "%00", "{{sample.a}}", "rl:a:b", "<|im_end|>")
_NUMBERS = (0, -1, 2**31, 2**63, 10**30, 1e308, -0.0)
_FIELDS = (
    "config",
    "name",
    "model",
    "training_file",
    "data",
    "method",
    "metadata",
    "messages",
    "scopes",
    "grader",
    "key",
)


class Hostile:
    """Makes requests. seed: the same one makes the same requests. key: a bearer that is known."""

    def __init__(self, seed: int, key: str) -> None:
        self._random = random.Random(seed)
        self._key = key
        self._kinds: list[Callable[[], bytes]] = [
            self.odd_json,
            self.nested_json,
            self.wide_json,
            self.broken_json,
            self.odd_multipart,
            self.odd_headers,
            self.odd_lengths,
            self.odd_query,
            self.odd_chunks,
            self.not_http,
            self.odd_toml,
            self.nobody,
        ]

    def next(self) -> tuple[str, bytes]:
        """The kind of the next request, and its bytes."""
        kind = self._random.choice(self._kinds)
        return kind.__name__, kind()

    def odd_json(self) -> bytes:
        body = {self._random.choice(_FIELDS): self._value(3) for _ in range(self._random.randint(0, 6))}
        return self._post(self._path(), json.dumps(body).encode())

    def nested_json(self) -> bytes:
        depth, (opened, closed) = (
            self._random.choice((50, 5000, 100_000)),
            self._random.choice((("[", "]"), ('{"data":', "}"), ('{"metadata":', "}"))),
        )
        whole = self._random.random() < 0.5
        return self._post(self._path(), (opened * depth + "1" + closed * depth * whole).encode())

    def wide_json(self) -> bytes:
        size = self._random.choice((1000, 50_000))
        body = {"config": "[tags]\n" + "".join(f"t{n}=1\n" for n in range(size // 10))}
        if self._random.random() < 0.5:
            body = {"metadata": {f"k{n}": "v" for n in range(size)}, "model": "m", "training_file": "f"}
        return self._post(self._path(), json.dumps(body).encode())

    def broken_json(self) -> bytes:
        pieces = (b"{", b"[1,", b"\xff\xfe", b'{"a":', b"NaN", b"1e999999", b'"\\ud800"', b"\x00" * 100, b"9" * 5000)
        return self._post(self._path(), b"".join(self._random.choices(pieces, k=self._random.randint(1, 5))))

    def odd_multipart(self) -> bytes:
        boundary = self._random.choice(("b", "b" * 70, "b" * 300, '"', "", "ü", "b\x0b"))
        name = self._random.choice(("file", "purpose", "", "n" * 5000, "file\x00"))
        header = self._random.choice(("Content-Disposition", "X" * 5000, "content-disposition"))
        body = f'--{boundary}\r\n{header}: form-data; name="{name}"; filename="{name}"\r\n\r\n'.encode()
        body += self._random.randbytes(self._random.choice((0, 10, 70_000)))
        if self._random.random() < 0.5:
            body += f"\r\n--{boundary}--\r\n".encode()
        path = self._random.choice(("/api/files", "/v1/files", "/api/learning/files"))
        return self._post(path, body, content_type=f"multipart/form-data; boundary={boundary}")

    def odd_headers(self) -> bytes:
        header = self._random.choice(
            (
                "Last-Event-ID: " + self._random.choice(("x", "9" * 40, "-1", "٣")),
                "Idempotency-Key: " + "k" * self._random.choice((1, 256, 5000)),
                "X-API-Key: " + self._random.choice(("", "k" * 9000, "é")),
                "Accept: text/event-stream",
                "traceparent: " + "0" * 500,
                "Upgrade: websocket\r\nConnection: Upgrade",
                "Expect: 100-continue",
                "X-Session-Id: " + "s" * 5000,
                *(f"X-{n}: {'v' * 100}" for n in range(3)),
            )
        )
        return self._request("GET", self._random.choice(GETS[:4]), [header])

    def odd_lengths(self) -> bytes:
        length = self._random.choice(("-1", "0x10", "99999999999999999999", "1e3", "", "5, 6", "٣"))
        return self._request("POST", self._path(), [f"Content-Length: {length}"], b"{}")

    def odd_query(self) -> bytes:
        names = ("limit", "after", "name", "tag", "prefix", "state", "metadata[a]", "order", "q")
        values = ("", "-1", "9" * 30, "%00", "%F0%9F%98%80", "a=b", "%", "x" * 3000, "%ED%A0%80")
        pairs = "&".join(f"{self._random.choice(names)}={self._random.choice(values)}" for _ in range(4))
        return self._request("GET", f"{self._random.choice(GETS[:4])}?{pairs}", [])

    def odd_chunks(self) -> bytes:
        chunk = self._random.choice(
            (b"zz\r\nab\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"-1\r\n\r\n", b"ffffffffffffffff\r\n")
        )
        return self._request("POST", self._path(), ["Transfer-Encoding: chunked"], chunk)

    def not_http(self) -> bytes:
        return self._random.choice(
            (
                self._random.randbytes(200),
                b"\x16\x03\x01\x02\x00" + self._random.randbytes(100),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET http://[::1 HTTP/1.1\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"\r\n" * 50,
                b"GET /\xff\xfe%zz HTTP/1.1\r\nHost: h\r\n\r\n",
            )
        )

    def odd_toml(self) -> bytes:
        text = self._random.choice(
            (
                "[rollout]\nops = [" + '"",' * 5000 + "]",
                'a = {"' + " " * 5000 + '"=1, "' + " " * 5000 + '"=1}',
                "a" + ".a" * 5000 + "=1",
                "[[a]]\n" * 3000,
                "a=" + "[" * 5000,
                "[rollout]\nmax_concurrent_rollouts = 1000000",
                "[tags]\n" + "".join(f"t{n}=1\n" for n in range(5000)),
            )
        )
        return self._post(self._random.choice(("/api/jobs", "/api/rl/jobs")), json.dumps({"config": text}).encode())

    def nobody(self) -> bytes:
        bearer = self._random.choice(("", "nobody", "synth_live_" + "x" * 40, "trace_" + "x" * 500, "k" * 9000))
        head = [
            f"POST {self._path()} HTTP/1.1",
            "Host: h",
            f"Authorization: Bearer {bearer}",
            "Content-Length: 9000000",
        ]
        return "\r\n".join([*head, "", ""]).encode() + b"x" * 1000

    def _path(self) -> str:
        return self._random.choice(PATHS)

    def _value(self, depth: int) -> object:
        kind = self._random.randrange(6 if depth else 4)
        if kind == 4:
            return [self._value(depth - 1) for _ in range(self._random.randint(0, 4))]
        if kind == 5:
            return {self._random.choice(_FIELDS): self._value(depth - 1) for _ in range(3)}
        return (self._random.choice(_WORDS), self._random.choice(_NUMBERS), None, True)[kind]

    def _post(self, path: str, body: bytes, *, content_type: str = "application/json") -> bytes:
        return self._request("POST", path, [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"], body)

    def _request(self, method: str, path: str, headers: list[str], body: bytes = b"") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: h", f"Authorization: Bearer {self._key}", "Connection: close"]
        return "\r\n".join([*lines, *headers, "", ""]).encode("utf-8", "surrogatepass") + body

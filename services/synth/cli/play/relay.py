"""The model's address for the task app: it passes each call on, and keeps requests and answers.

As on the platform, the address carries a credential, the sampling settings are the player's and not the agent's, and
the number of calls is bounded.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from synth.cli.play.models import Answer, Body, as_stream
from synth.console.errors import CliError
from synth.rollout_credential import find_credential

_LARGEST_BODY = 64 << 20


@dataclass(frozen=True)
class Call:
    """One call of the model. asked: the whole request. completion: the whole answer. seconds: until it came."""

    asked: Body
    completion: Body
    seconds: float

    @property
    def messages(self) -> list[Body]:
        return [m for m in cast(list[Any], self.asked.get("messages") or []) if isinstance(m, dict)]

    @property
    def reply(self) -> Body:
        return cast(Body, self.completion["choices"][0]["message"])


@dataclass
class ModelRelay:
    """Stands for the model while the block runs.

    answer: the model. sampling: replaces the agent's own settings. limit: calls at most. heard: called with the number
    of each call, before it is answered. calls: in the order of their answers. error: why the model could not answer.
    """

    answer: Answer
    sampling: Body
    limit: int
    host: str = "127.0.0.1"
    heard: Callable[[int], None] = lambda number: None
    calls: list[Call] = field(default_factory=list[Call])
    error: CliError | None = None

    def __post_init__(self) -> None:
        # The credential has the form of the platform's own, since agents' clients cut and move it.
        self.credential = f"trace_{secrets.token_hex(6)}_{secrets.token_hex(4)}_0_L_0_0_{secrets.token_hex(12)}"
        self._begun = 0
        self._lock = threading.Lock()

    def __enter__(self) -> ModelRelay:
        self._server = ThreadingHTTPServer((self.host, 0), _handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The `inference_url` of the rollout."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self._server.server_address[1]}/v1/chat/completions?cid={self.credential}"

    def complete(self, asked: Body) -> tuple[int, Body]:
        """Return the status and the body that the agent gets."""
        with self._lock:
            self._begun += 1
            number = self._begun
        if number > self.limit:
            return _refusal(429, f"{self.limit} calls are used up: a rollout has four for each turn, at least 8")
        self.heard(number)
        began = time.monotonic()
        try:
            completion = self.answer({**asked, **self.sampling, "stream": False})
        except CliError as error:
            self.error = self.error or error
            # No client retries this status, so that the person reads the reason at once.
            return _refusal(400, str(error))
        self.calls.append(Call(asked, completion, time.monotonic() - began))
        return 200, completion


def _refusal(status: int, message: str) -> tuple[int, Body]:
    return status, {"error": {"message": message, "type": "invalid_request_error"}}


def _handler_of(relay: ModelRelay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if length > _LARGEST_BODY:
                self._send(*_refusal(413, "the request is too large"))
                return
            body = self.rfile.read(length)
            parts = urlsplit(self.path)
            key = self.headers.get("Authorization") or ""
            credential = find_credential(path=unquote(parts.path), query=parts.query, authorization=key)
            if credential is None or not secrets.compare_digest(credential.encode(), relay.credential.encode()):
                self._send(*_refusal(401, "call the address as it was given, query included"))
                return
            try:
                request = json.loads(body)
            except ValueError:
                request = None
            if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
                self._send(*_refusal(400, "the body is no chat request: it needs a list of messages"))
                return
            status, answer = relay.complete(cast(Body, request))
            if status == 200 and request.get("stream"):
                self._send_text(200, "".join(as_stream(answer)), "text/event-stream")
            else:
                self._send(status, answer)

        def _send(self, status: int, answer: Body) -> None:
            self._send_text(status, json.dumps(answer), "application/json")

        def _send_text(self, status: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler

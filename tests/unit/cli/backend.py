"""A real HTTP server with scripted answers: for what a healthy gateway would not do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from synth.api.schemas import JobWithConfig
from synth.client import Client
from synth.client.connections.config import Config, ConfigValue
from synth.jobs.lifecycle import State

#: The settings of `synthctl` that a developer's own environment may have.
SETTINGS = ("SYNTH_API_KEY", "BACKEND_BASE_URL", "BACKEND_OVERRIDE", "ENVIRONMENT_API_KEY", "TASK_APP_URL")


@dataclass
class Answer:
    """One answer; `chunks` are sent one by one, and then the connection is closed."""

    status: int = 200
    body: Any = None
    chunks: list[str] | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def job_body(state: str = State.CREATED, **changes: Any) -> dict[str, Any]:
    """A job as the gateway answers one."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    job = JobWithConfig(id="job_1", state=State.CREATED, name="a.toml", created_at=now, updated_at=now, last_seq=1)
    return msgspec.to_builtins(job) | {"state": state} | changes


class Backend:
    """Answers with what `answer` returns, and remembers what it was asked."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.requests: list[Request] = []
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, dict(self.headers), body)
                backend.requests.append(request)
                reply = answer(request)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.chunks is not None:
                    self.send_header("Content-Type", "text/event-stream")
                    self.end_headers()
                    for chunk in reply.chunks:
                        self.wfile.write(chunk.encode())
                    return
                raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(0 if reply.status == 204 else len(raw)))
                self.end_headers()
                if reply.status != 204:
                    self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/api"


@contextmanager
def backend_that(answer: Callable[[Request], Answer]) -> Iterator[tuple[Backend, Client]]:
    """A running backend and a client of it."""
    backend = Backend(answer)
    thread = threading.Thread(target=backend.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with client_of(backend.url) as client:
            yield backend, client
    finally:
        backend.server.shutdown()
        thread.join()
        backend.server.server_close()


def client_of(url: str, *, retry_budget: float = 1.0) -> Client:
    config = Config(ConfigValue(url, "flag"), ConfigValue("synth_live_x", "environment", "SYNTH_API_KEY"), None, None)
    return Client(config, retry_budget=retry_budget)

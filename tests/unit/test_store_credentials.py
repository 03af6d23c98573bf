"""The credentials of an object store, as a service's environment gives them: each service signs with its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from synth.blobs import BlobStore


class ObjectStore(BaseHTTPRequestHandler):
    """Takes every object, and keeps who signed for which path."""

    signed: list[tuple[str, str]]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.signed.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    signed: list[tuple[str, str]] = []
    handler = type("Handler", (ObjectStore,), {"signed": signed})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        yield signed
        server.shutdown()


@pytest.mark.parametrize("service", ["trainer", "judge"])
async def test_a_service_signs_with_the_credentials_of_its_environment(
    service: str, object_store: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"{name}-of-{service}")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    await BlobStore.open("s3://bucket/prefix").put_bytes("jobs/job_1/log", b"x")
    ((path, authorization),) = object_store
    assert path == "/bucket/prefix/jobs/job_1/log"
    assert f"Credential=AWS_ACCESS_KEY_ID-of-{service}/" in authorization
    assert "/eu-west-1/s3/" in authorization

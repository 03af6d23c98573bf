"""Images and actions are pinned by one file, which a registry's API fills in: here a real server that speaks it."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from contracts.digests import FILE, ROOT, main, named, places, read_digests

MANIFESTS = {"/v2/library/nats": b'{"manifests": ["nats"]}', "/v2/library/python": b'{"manifests": ["python"]}'}
COMMIT = "1234567890abcdef1234567890abcdef12345678"


class Registry(BaseHTTPRequestHandler):
    """An image registry that wants a token even of readers, with GitHub's API beside it."""

    missing: set[str]
    wrong: set[str]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        repository = path.partition("/manifests/")[0]
        if path == "/token":
            assert "service=registry" in query
            return self._answer(200, json.dumps({"token": query.partition("scope=")[2]}).encode())
        if path.startswith("/repos/"):
            assert self.headers["Accept"] == "application/vnd.github.sha"
            return self._answer(404 if path in self.missing else 200, COMMIT.encode())
        scope = f"repository:{repository.removeprefix('/v2/')}:pull"
        if self.headers["Authorization"] != f"Bearer {scope.replace(':', '%3A').replace('/', '%2F')}":
            realm = f"http://{self.headers['Host']}/token"
            challenge = f'Bearer realm="{realm}",service="registry",scope="{scope}"'
            return self._answer(401, b"{}", {"WWW-Authenticate": challenge})
        if repository not in MANIFESTS or repository in self.missing:
            return self._answer(404, b"{}")
        body = MANIFESTS[repository]
        sent = b"another" if repository in self.wrong else body
        return self._answer(200, sent, {"Docker-Content-Digest": digest_of(body)})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.fixture
def registry() -> Iterator[tuple[str, type[Registry]]]:
    handler = type("Handler", (Registry,), {"missing": set[str](), "wrong": set[str]()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the files that name images and actions, and of the digests."""
    for file in (*places(), ROOT / FILE):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return tmp_path


def test_every_image_and_action_has_its_entry_and_the_digest_that_the_file_has():
    """A tag that the file does not have, or an image without its digest, is refused here."""
    digests = read_digests()
    found = list(named())
    assert {n.name for n in found} == set(digests), f"{FILE}: one entry for each image and action, and no other"
    wrong = {(n.file.name, n.name): n.digest for n in found if n.digest != digests[n.name]}
    assert wrong == {}, "python -m contracts.digests --write"


def test_no_image_and_no_action_escapes_the_search():
    for file in places():
        lines = [line.split("#")[0].strip().removeprefix("- ") for line in file.read_text().splitlines()]
        namings = [line for line in lines if line.startswith(("image:", "FROM ", "uses:"))]
        assert len(namings) == len([n for n in named() if n.file == file]), file


def test_tags_are_resolved_by_the_registry_and_written_where_they_are_used(
    repository: Path, registry: tuple[str, type[Registry]]
):
    url, _ = registry
    assert main(["--root", str(repository), "--registry", url, "--github", url]) == 0
    digests = read_digests(repository)
    assert digests["nats:2.15.1-alpine"] == digest_of(MANIFESTS["/v2/library/nats"])
    assert {digests[name] for name in digests if "@" in name} == {COMMIT}
    assert all(n.digest == digests[n.name] for n in named(repository))
    compose = (repository / "docker-compose.yml").read_text()
    assert f"image: nats:2.15.1-alpine@{digests['nats:2.15.1-alpine']}" in compose
    assert f"actions/checkout@{COMMIT} # v4" in (repository / ".github/workflows/ci.yml").read_text()
    before = [file.read_text() for file in places(repository)]
    assert main(["--root", str(repository), "--write"]) == 0
    assert [file.read_text() for file in places(repository)] == before


def test_what_cannot_be_resolved_keeps_its_digest_and_is_named(
    repository: Path, registry: tuple[str, type[Registry]], capsys: pytest.CaptureFixture[str]
):
    url, handler = registry
    handler.missing.add("/repos/actions/checkout/commits/v4")
    handler.wrong.add("/v2/library/python")
    assert main(["--root", str(repository), "--registry", url, "--github", url]) == 1
    said = capsys.readouterr().err
    assert "actions/checkout@v4 is not resolved" in said
    assert "python:3.11-slim is not resolved" in said
    assert "Traceback" not in said
    digests = read_digests(repository)
    assert digests["actions/checkout@v4"] == read_digests()["actions/checkout@v4"]
    assert digests["python:3.11-slim"] == read_digests()["python:3.11-slim"]
    assert digests["nats:2.15.1-alpine"].startswith("sha256:")


def test_a_registry_that_is_not_there_is_an_error_of_one_line_for_each(
    repository: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["--root", str(repository), "--registry", "http://127.0.0.1:9", "--github", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert said.count("is not resolved") == 4
    assert "Traceback" not in said

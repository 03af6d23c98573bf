"""`synthctl models pull`: from a small server that speaks the model hub's API, from its cache, and from a folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.forked_cli import forked_cli

MODEL = "Qwen/Qwen3-0.6B"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = b"weights " * 5000
FILES = {
    "config.json": json.dumps({"model_type": "qwen3"}).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS,
    "README.md": b"# Words",
    "onnx/model.onnx": b"other",
}


class Hub:
    """Serves one model as the hub does. asked: the paths that were fetched. damaged: one that arrives otherwise."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.files = dict(FILES)
        self.damaged = ""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        name = path.removeprefix(f"/{MODEL}/resolve/{COMMIT}/")
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            tree = [{"type": "file", "path": n, "size": len(body), "oid": "0"} for n, body in self.files.items()]
            return self.reply(request, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        if path.startswith(f"/api/models/{MODEL}"):
            return self.reply(request, json.dumps(self.info()).encode(), {"Content-Type": "application/json"})
        if name != path and name in self.files:
            body = self.files[name]
            headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if request.command == "GET":
                self.asked.append(name)
                body = b"x" * len(body) if name == self.damaged else body
            return self.reply(request, body, headers)
        return self.reply(request, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"}, status=404)

    def info(self) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, body in self.files.items():
            lfs = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 1}
            large = {"lfs": lfs} if name.endswith((".safetensors", ".bin")) else {}
            siblings.append({"rfilename": name, "size": len(body), **large})
        return {"id": MODEL, "modelId": MODEL, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}

    @staticmethod
    def reply(request: BaseHTTPRequestHandler, body: bytes, headers: dict[str, str], *, status: int = 200) -> None:
        request.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    serving = Hub()
    yield serving
    serving.server.shutdown()


def pull(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SYNTH_"))}
    own = {"HF_HOME": str(folder / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    arguments = ("models", "pull", *arguments)
    return forked_cli().run(arguments, folder=folder, environment=clean | own | env, timeout=120)


def test_what_the_services_read_is_fetched_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    done = pull(tmp_path, MODEL.lower(), "-o", "json", HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    pulled = json.loads(done.stdout)
    target = tmp_path / ".synth" / "models" / MODEL
    assert (pulled["id"], pulled["path"]) == (MODEL, str(target))
    assert sorted(p.name for p in target.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert "pytorch_model.bin" not in hub.asked
    again = pull(tmp_path, MODEL, HF_ENDPOINT=hub.url)
    assert "was here already" in again.stderr


def test_a_pull_that_was_broken_off_goes_on_and_damage_is_found(hub: Hub, tmp_path: Path) -> None:
    hub.damaged = "model.safetensors"
    done = pull(tmp_path, MODEL, HF_ENDPOINT=hub.url)
    assert done.returncode == 1
    assert "model.safetensors differs from the hub's file" in done.stderr
    assert not (tmp_path / ".synth" / "models" / MODEL).exists()
    hub.damaged, hub.asked = "", []
    assert pull(tmp_path, MODEL, HF_ENDPOINT=hub.url).returncode == 0
    assert hub.asked == ["model.safetensors"]


def test_what_cannot_be_pulled_is_refused_before_its_weights(hub: Hub, tmp_path: Path) -> None:
    hub.files["config.json"] = b'{"model_type": "t5"}'
    done = pull(tmp_path, MODEL, HF_ENDPOINT=hub.url)
    assert (done.returncode, hub.asked) == (2, ["config.json"])
    assert "of type 't5'" in done.stderr
    unknown = pull(tmp_path, "nobody/nothing", HF_ENDPOINT=hub.url)
    assert unknown.returncode == 6
    assert "there is no model 'nobody/nothing'" in unknown.stderr
    away = pull(tmp_path, MODEL, HF_ENDPOINT="http://127.0.0.1:9")
    assert away.returncode == 7
    assert "HF_ENDPOINT" in away.stderr
    no_address = pull(tmp_path, MODEL, HF_ENDPOINT="nowhere")
    assert no_address.returncode == 7
    assert "the hub does not answer" in no_address.stderr
    offline = pull(tmp_path, MODEL, HF_HUB_OFFLINE="1")
    assert offline.returncode == 7
    assert "HF_HUB_OFFLINE is set" in offline.stderr


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    source = tmp_path / "mine"
    source.mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (source / name).write_bytes(FILES[name])
    done = pull(tmp_path, "./mine", "--name", MODEL)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in Path(done.stdout.strip()).iterdir()) == ["config.json", "model.safetensors"]
    (source / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')
    short = pull(tmp_path, "./mine", "--name", "short")
    assert short.returncode == 2
    assert "first model-00002-of-00002.safetensors" in short.stderr

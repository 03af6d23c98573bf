"""A dataset or a job file may be a pipe, which can be read once."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.forked_cli import forked_cli
from tests.unit.cli.backend import Answer, Request, backend_that
from tests.unit.cli.test_command_line import CLEAN

ROWS = b'{"messages": [{"role": "user", "content": "a\xe2\x80\xa8b"}, {"role": "assistant", "content": "c"}]}\n' * 1000
FILE = {"id": "file_1", "object": "file", "purpose": "fine-tune", "bytes": 1, "created_at": "2026-01-01T00:00:00Z"}
NO_BACKEND = {"BACKEND_BASE_URL": "http://127.0.0.1:9", "SYNTH_API_KEY": "k"}
READY = FILE | {"filename": "x", "status": "ready", "rows": 1000, "sha256": "0"}


def run(script: str, cwd: Path, *, stdin: int = subprocess.DEVNULL, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = ["bash", "-c", script.replace("synthctl", f"{sys.executable} -m synth.cli")]
    return subprocess.run(command, cwd=cwd, env=CLEAN | env, capture_output=True, timeout=60, check=False, stdin=stdin)


def uploaded(script: str, cwd: Path, *, stdin: int = subprocess.DEVNULL) -> tuple[str, bytes]:
    """Run a command; return the name and the bytes of the file that it uploads."""
    with backend_that(lambda _: Answer(body=READY)) as (backend, _):
        done = run(script, cwd, BACKEND_BASE_URL=backend.url, SYNTH_API_KEY="k", stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"file_1\n"
    (request,) = [r for r in backend.requests if r.method == "POST"]
    return file_of(request)


def file_of(request: Request) -> tuple[str, bytes]:
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
    (part,) = [p for p in request.body.split(b"--" + boundary) if b"filename=" in p]
    head, _, body = part.partition(b"\r\n\r\n")
    match = re.search(rb'filename="([^"]*)"', head)
    assert match is not None
    return match[1].decode(), body.removesuffix(b"\r\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    return tmp_path


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("synthctl files upload <(cat rows.jsonl)", r"\d+\.jsonl"),
        ("cat rows.jsonl | synthctl files upload /dev/stdin", r"stdin\.jsonl"),
        ("cat rows.jsonl | synthctl files upload -", r"stdin\.jsonl"),
        ("synthctl files upload - < rows.jsonl", r"stdin\.jsonl"),
        ("synthctl files upload /dev/stdin < rows.jsonl", "stdin"),
        ("mkfifo f.jsonl; cat rows.jsonl > f.jsonl & synthctl files upload f.jsonl", r"f\.jsonl"),
    ],
)
def test_a_pipe_is_uploaded_whole(folder: Path, script: str, name: str):
    sent, body = uploaded(script, folder)
    assert body == ROWS
    assert re.fullmatch(name, sent)


@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_a_socket_that_is_standard_input_is_uploaded_whole(tmp_path: Path, path: str):
    ours, theirs = socket.socketpair()

    def send() -> None:
        with ours:
            ours.sendall(ROWS)

    threading.Thread(target=send, daemon=True).start()
    with theirs:
        assert uploaded(f"synthctl files upload {path}", tmp_path, stdin=theirs.fileno())[1] == ROWS


def test_the_copy_of_a_pipe_does_not_stay(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    copies = tmp_path_factory.mktemp("copies")
    uploaded(f"export TMPDIR={copies}; cat rows.jsonl | synthctl files upload -", folder)
    assert os.listdir(copies) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nothing.jsonl", "there is no such file"),
        ("socket", "it is a socket"),
        ("/dev/zero", "it is a device"),
        ("folder", "the folder holds no rows"),
        ("rows.jsonl/x", "cannot be read (Not a directory)"),
    ],
)
def test_what_is_no_dataset_is_named(folder: Path, path: str, problem: str):
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        # An address of a socket is short.
        here = os.getcwd()
        os.chdir(folder)
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
        environment = CLEAN | NO_BACKEND
        done = forked_cli().run(["files", "upload", path], folder=folder, environment=environment, timeout=60)
    assert done.returncode == 2, done.stderr
    assert problem in done.stderr


def test_a_pipe_without_a_row_is_empty(folder: Path):
    done = run(
        "synthctl files upload <(true)", folder, BACKEND_BASE_URL=NO_BACKEND["BACKEND_BASE_URL"], SYNTH_API_KEY="k"
    )
    assert done.returncode == 2, done.stderr
    assert b"the file is empty" in done.stderr


@pytest.mark.parametrize("job", ["<(cat sft.toml)", "- < sft.toml", "/dev/stdin < sft.toml", "/dev/fd/3 3< sft.toml"])
def test_a_job_file_and_its_dataset_may_both_be_pipes(folder: Path, job: str):
    (folder / "sft.toml").write_text('[job]\nmodel = "Qwen/Qwen3-0.6B"\n')
    (folder / "bad.jsonl").write_bytes(ROWS + b"{}\n")
    done = run(f"synthctl config check {job} --dataset <(cat bad.jsonl)", folder)
    assert done.returncode == 2
    assert re.search(rb"/dev/fd/\d+:1001", done.stderr), done.stderr.decode()
    good = run(f"synthctl config check {job} --dataset <(cat rows.jsonl)", folder)
    assert good.returncode == 0, good.stderr.decode()

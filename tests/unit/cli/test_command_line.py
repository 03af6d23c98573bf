"""The program itself: what it imports, its exit codes, and that no error is a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.forked_cli import forked_cli
from tests.unit.cli.backend import SETTINGS, Answer, Request, backend_that

CLEAN = {name: value for name, value in os.environ.items() if name not in SETTINGS}


def synthctl(*arguments: str, cwd: Path, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return forked_cli().run(arguments, folder=cwd, environment=CLEAN | env, timeout=60, input=input)


def missing(request: Request) -> Answer:
    if "prefix=" in request.path:
        return Answer(body={"data": [], "has_more": False})
    return Answer(404, {"error": {"message": "there is no such thing", "problems": []}})


def test_a_conversation_with_a_model_that_is_not_there_ends_before_its_first_prompt(tmp_path: Path):
    terminal, stdin = os.openpty()
    with backend_that(missing) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"}
        run = subprocess.run(
            [sys.executable, "-m", "synth.cli", "chat", "nope"],
            cwd=tmp_path,
            env=CLEAN | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=stdin,
        )
    os.close(terminal)
    os.close(stdin)
    assert (run.returncode, run.stdout) == (6, "")
    assert run.stderr == "error: there is no such thing\n"
    assert [r.path for r in backend.requests] == ["/api/models/nope"]


@pytest.mark.parametrize(("job", "asked"), [("nope", 2), ("job_0123456789abcdef", 1)])
def test_a_watch_of_a_job_that_is_not_there_ends_at_once(job: str, asked: int, tmp_path: Path):
    """What is no whole id may be the beginning of one, or a name."""
    with backend_that(missing) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"}
        run = synthctl("jobs", "watch", job, cwd=tmp_path, **env)
    assert (run.returncode, run.stdout) == (6, "")
    assert run.stderr.startswith("error: there is no ")
    assert len(backend.requests) == asked


def test_who_asks_says_how_long_a_request_may_take_and_be_sent_again(tmp_path: Path):
    over = threading.Event()

    def answer(request: Request) -> Answer:
        if "state=running" in request.path:
            over.wait(30)
        return Answer(503, {"error": {"message": "busy"}})

    with backend_that(answer) as (backend, _):
        env = {"BACKEND_BASE_URL": backend.url, "SYNTH_API_KEY": "k"}
        once = synthctl("--retry-for", "0", "jobs", "ls", cwd=tmp_path, **env)
        asked = len(backend.requests)
        patience = ("--request-timeout", "0.2", "--retry-for", "0")
        slow = synthctl(*patience, "jobs", "ls", "--state", "running", cwd=tmp_path, **env)
        over.set()
    assert (once.returncode, asked) == (1, 1)
    assert "busy" in once.stderr
    assert slow.returncode == 7
    assert "timed out" in slow.stderr


def test_the_client_imports_neither_the_bus_nor_torch(tmp_path: Path):
    code = """
import sys
import synth.cli.app, synth.client, synth.client.submission, synth.cli.tui.follow, synth.cli.tui.view
import synth.cli.submission, synth.cli.transfer.upload, synth.cli.transfer.download, synth.cli.doctor
heavy = {"nats", "faststream", "torch", "transformers", "nacl", "psutil", "obstore", "synth.bus.server.topology"}
sys.stdout.write(",".join(sorted(heavy & set(sys.modules))))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout == ""


def test_the_program_starts_without_what_only_some_commands_need(tmp_path: Path):
    code = "import sys, synth.cli.app; sys.stdout.write(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert not {"httpx", "rich.console", "pydantic", "asyncio"} & set(run.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-h"], 0),
        (["jobs", "ls", "-h"], 0),
        (["jobs", "nonsense"], 2),
        (["jobs", "get"], 2),
        (["jobs", "ls", "-o", "xml"], 2),
        (["--backend", "nowhere", "jobs", "ls"], 2),
        (["jobs", "ls"], 4),
        (["chat", "m", "-m", " "], 2),
        (["submit", "missing.toml"], 2),
        (["files", "upload", "missing.jsonl"], 4),
        (["eval", "--model", "m"], 2),
        (["status"], 7),
        (["down"], 0),
    ],
)
def test_exit_codes_tell_what_happened(arguments: list[str], code: int, tmp_path: Path):
    run = synthctl(*arguments, cwd=tmp_path)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr


SFT = """
[algorithm]
type = "offline"
method = "sft"
variety = "fft"

[job]
model = "tiny-qwen3"

[hyperparameters]
n_epochs = 1
learning_rtae = 0.1
"""


def test_a_misspelt_key_is_named_with_its_line_before_anything_is_sent(tmp_path: Path):
    (tmp_path / "sft.toml").write_text(SFT)
    (tmp_path / "d.jsonl").write_text("{}\n")
    run = synthctl("submit", "sft.toml", "--dataset", "d.jsonl", cwd=tmp_path)
    assert run.returncode == 2
    assert "sft.toml:12" in run.stderr
    assert "learning_rate" in run.stderr


def test_a_dataset_that_is_not_there_is_named_before_anything_is_sent(tmp_path: Path):
    (tmp_path / "sft.toml").write_text(SFT.replace("learning_rtae", "learning_rate"))
    run = synthctl("submit", "sft.toml", "--dataset", "d.jsonl", cwd=tmp_path)
    assert run.returncode == 2
    assert "d.jsonl" in run.stderr


def test_debug_shows_the_traceback_that_is_hidden_otherwise(tmp_path: Path):
    run = synthctl("--debug", "submit", "missing.toml", cwd=tmp_path)
    assert "Traceback" in run.stderr

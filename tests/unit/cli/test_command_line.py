"""The program itself: what it imports, its exit codes, and that no error is a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLEAN = {
    k: v
    for k, v in os.environ.items()
    if k not in ("SYNTH_API_KEY", "BACKEND_BASE_URL", "BACKEND_OVERRIDE", "ENVIRONMENT_API_KEY", "TASK_APP_URL")
}


def synthctl(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "synth.cli", *arguments],
        cwd=cwd,
        env=CLEAN | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_client_imports_neither_the_bus_nor_torch(tmp_path: Path):
    code = """
import sys
import synth.cli.app, synth.cli.api.client, synth.cli.api.stream, synth.cli.tui.follow, synth.cli.tui.view
import synth.cli.submission, synth.cli.transfer.upload, synth.cli.transfer.download, synth.cli.checks
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

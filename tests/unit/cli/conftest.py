"""The program, built once for all commands that run in the tests' own process, and a cluster that checks jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from synth.cli import app
from tests.unit.cli.backend import SETTINGS, Backend, backend_that
from tests.unit.cli.checking import KEY, RL, ROW, SFT, Cluster, Run


@pytest.fixture(scope="session", autouse=True)
def one_program() -> Iterator[None]:
    """To build it takes a third of a second, and the result is the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(typer.main.get_command))
        patch.setattr(app, "build", cache(app.build))
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    folder = tmp_path / "cluster" / "tiny-qwen3"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen3", "max_position_embeddings": 64}')
    header = b"{}"
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return Cluster(folder.parent)


@pytest.fixture
def backend(cluster: Cluster) -> Iterator[Backend]:
    with backend_that(cluster) as (backend, _):
        yield backend


@pytest.fixture
def run(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; returns its exit code, output and messages, `APP` for the address."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    # It replaces this process's own streams, which pytest reads.
    monkeypatch.setattr("synth.cli.app.end_quietly_without_reader", lambda: None)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SYNTH_API_KEY", KEY)
    monkeypatch.setenv("BACKEND_BASE_URL", backend.url)
    address = backend.url.removesuffix("/api")
    Path("rl.toml").write_text(RL.format(app=address))
    Path("sft.toml").write_text(SFT)
    Path("rows.jsonl").write_text(ROW)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["synthctl", "--retry-for", "0", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err.replace(address, "APP")

    return run

"""A cluster whose inference service runs vLLM, from `make install-vllm`; all else is as for everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.conftest import math_rows, math_url
from tests.e2e.cli.conftest import Shell
from tests.e2e.platform import Platform
from tests.e2e.task_apps import KEY, Served, letters, served

__all__ = ["math_rows", "math_url"]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"

Tell = Callable[[str], None]


@contextmanager
def running(folder: Path, **env: str) -> Iterator[Platform]:
    """A cluster with vLLM in this folder, and a tiny model whose heads are as wide as vLLM wants them on a CPU."""
    shell = Shell(folder)
    (folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    options = {"SYNTH_INFERENCE_PYTHON": str(PYTHON), **env}
    shell.ok("up", "--detach", "--port", str(shell.port), "--engine", "vllm", **options)
    try:
        shell.ok("models", "make", "tiny-qwen3", "--head-dim", "32")
        yield Platform(shell)
    finally:
        shell.run("down")
    assert shell.alive() == []


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running(tmp_path_factory.mktemp("vllm")) as platform:
        yield platform


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Says a figure at the end of the test run."""
    return lambda text: request.node.user_properties.append(("figure", text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        if report.when == "call":
            for name, text in report.user_properties:
                if name == "figure":
                    terminalreporter.write_line(f"{report.location[2]}: {text}")


@pytest.fixture(scope="session")
def letters_app() -> Iterator[Served]:
    with served(letters()) as app:
        yield app

"""One running cluster for the session, with a base model, a dataset and two good task apps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.demo.math import dataset
from tests.e2e.cli.conftest import Shell
from tests.e2e.platform import Platform
from tests.e2e.task_apps import KEY, Served, countdown, letters, served


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The cluster. Jobs that wait for two seconds are told so; a task app has three for an answer."""
    shell = Shell(tmp_path_factory.mktemp("platform"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    quick = {"SYNTH_WAITING_AFTER_S": "2", "SYNTH_CALL_DEADLINE_S": "3", "SYNTH_RETRY_FOR_S": "1"}
    shell.ok("up", "--detach", "--port", str(shell.port), **quick)
    try:
        shell.make_model()
        yield Platform(shell)
    finally:
        shell.run("down")
    assert shell.alive() == []


@pytest.fixture(scope="session")
def rows(platform: Platform) -> Path:
    """Sums to train on."""
    file = platform.shell.folder / "math.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(512, seed=0)))
    return file


@pytest.fixture(scope="session")
def letters_app() -> Iterator[Served]:
    with served(letters()) as app:
        yield app


@pytest.fixture(scope="session")
def countdown_app() -> Iterator[Served]:
    with served(countdown()) as app:
        yield app

"""A cluster that runs a stand-in under an id that the published clients know, and each client in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from synth.bus.server.embedded import free_port
from synth.demo.math import dataset
from synth.runtime.environment.env_file import read_env_file
from tests.chaos.job_text import demo
from tests.clients.published import Published
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform
from tests.e2e.task_apps import letters, served
from tests.judge_server import JudgeServer, scored

BASE = "Qwen/Qwen3-0.6B"
ENVIRONMENT_KEY = "env_of_the_clients"
VERSIONS = ("0.2.16", "0.2.23")
_VENVS = Path(__file__).parents[2] / ".venv-clients"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of both versions to one of them, half of the tests to each; `make soak` runs the others."""
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        version = item.callspec.params.get("synth_ai")
        name = item.originalname or item.name
        if version is not None and version != VERSIONS[zlib.crc32(name.encode()) % len(VERSIONS)]:
            item.add_marker(pytest.mark.soak)


def venv_of(name: str) -> Path:
    """The environment of an installed client."""
    venv = _VENVS / name
    assert (venv / "installed").is_file(), f"{name} is not installed; `make test-clients` does it"
    return venv


@pytest.fixture(scope="session")
def client_venvs() -> dict[str, Path]:
    """Version of `synth-ai` → its environment."""
    return {version: venv_of(f"synth-ai-{version}") for version in VERSIONS}


@pytest.fixture(scope="session")
def judge_api() -> Iterator[JudgeServer]:
    """The API of a judge that pays for sums that are worked out."""
    with JudgeServer(scored(lambda call: 1.0 if "answer " in call.text else 0.25)) as server:
        yield server


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory, judge_api: JudgeServer) -> Iterator[Platform]:
    """The cluster. A tiny model stands in for the one that the clients ask for; who names no judge has `judge_api`."""
    shell = Shell(tmp_path_factory.mktemp("clients"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={ENVIRONMENT_KEY}\n")
    judges = {
        "SYNTH_JUDGE_PROVIDERS": json.dumps({"scripted": {"base_url": judge_api.url}}),
        "SYNTH_JUDGE_PROVIDER": "scripted",
    }
    shell.ok("up", "--detach", "--port", str(shell.port), **judges)
    try:
        shell.make_model()
        shell.ok("models", "alias", BASE, "tiny-qwen3")
        yield Platform(shell)
    finally:
        shell.run("down")
    assert shell.alive() == []


@pytest.fixture(scope="session")
def sums(platform: Platform) -> Path:
    """The demo's dataset."""
    file = platform.shell.folder / "math.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(16_000, seed=0)))
    return file


@pytest.fixture(scope="session")
def some_sums(sums: Path) -> Path:
    """A quarter of them: a model of one pass answers, and is seldom right."""
    file = sums.with_name("some.jsonl")
    file.write_text("".join(sums.read_text().splitlines(keepends=True)[:4096]))
    return file


@pytest.fixture(scope="session")
def sft_model(platform: Platform, sums: Path) -> str:
    """A model that sometimes gets a sum right, so that RL has something to learn from."""
    job = platform.submit(demo("sft", total_steps=400), "--dataset", str(sums), "--model", BASE)
    return platform.succeeded(job)["model"]


@pytest.fixture(scope="session")
def letters_url() -> Iterator[str]:
    """A task app that pays any model now and then, so that each RL job has something to learn from."""
    with served(letters(ENVIRONMENT_KEY)) as app:
        yield app.url


@pytest.fixture(scope="session")
def math_url(platform: Platform) -> Iterator[str]:
    """The Math task app, a process of its own."""
    port = free_port()
    log = (platform.shell.folder / "math.log").open("wb")
    command = [sys.executable, "-m", "synth.demo.math", "--port", str(port)]
    env = {**os.environ, "ENVIRONMENT_API_KEY": ENVIRONMENT_KEY}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(url))
        yield url
    finally:
        process.terminate()
        process.wait(10)
        log.close()


@pytest.fixture(scope="session")
def published(
    platform: Platform, math_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Published]:
    """An installed client, by the name of its environment."""
    made: dict[str, Published] = {}

    def get(name: str) -> Published:
        if name not in made:
            made[name] = Published(
                venv=venv_of(name),
                folder=tmp_path_factory.mktemp(name),
                root=f"http://127.0.0.1:{platform.shell.port}",
                api_key=read_env_file(platform.shell.folder / ".env")["SYNTH_API_KEY"],
                environment_key=ENVIRONMENT_KEY,
                task_url=math_url,
            )
        return made[name]

    return get


@pytest.fixture(params=VERSIONS)
def synth_ai(request: pytest.FixtureRequest, published: Callable[[str], Published]) -> Published:
    """Each version of the `synth-ai` client in turn."""
    return published(f"synth-ai-{request.param}")


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/").status_code == 200
    except httpx.TransportError:
        return False

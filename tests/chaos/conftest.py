"""A cluster to be harmed, with a model that RL can improve and the Math task app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from synth.bus.connection import connect
from synth.bus.server.embedded import free_port
from synth.demo.math import dataset
from synth.runtime.environment.env_file import read_env_file
from synth.runtime.settings import ServiceSettings
from tests.chaos.event_recorder import EventRecorder
from tests.chaos.job_text import demo
from tests.e2e.cli.conftest import Shell
from tests.e2e.platform import Platform
from tests.e2e.task_apps import letters, served

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The cluster, with the tiny base model. A service that starts while `next-release` is there is of that release."""
    shell = Shell(tmp_path_factory.mktemp("chaos"))
    path = os.pathsep.join([str(Path(__file__).parent / "next_release"), os.environ.get("PYTHONPATH", "")])
    release = {"PYTHONPATH": path, "NEXT_RELEASE": str(shell.folder / "next-release")}
    shell.ok("up", "--detach", "--port", str(shell.port), **release)
    try:
        shell.make_model()
        yield Platform(shell)
    finally:
        shell.run("down")
    assert shell.alive() == []


@pytest.fixture(scope="session")
def math_url(platform: Platform) -> Iterator[str]:
    """The Math task app, a process with the keys that `synthctl up` wrote to .env."""
    port, log = free_port(), platform.shell.folder / "math.log"
    command = [sys.executable, "-m", "synth.demo.math", "--port", str(port)]
    with log.open("wb") as out:
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        app = subprocess.Popen(command, cwd=platform.shell.folder, env=env, stdout=out, stderr=out)
    yield f"http://127.0.0.1:{port}"
    app.terminate()
    app.wait(10)


@pytest.fixture(scope="session")
def letters_flags(platform: Platform) -> Iterator[tuple[str, ...]]:
    """What has an RL job of the demo play an app that pays any model, so that it has a signal without an SFT before."""
    key = read_env_file(platform.shell.folder / ".env")["ENVIRONMENT_API_KEY"]
    with served(letters(key)) as app:
        yield ("--set", "rollout.env_name=letters", "--task-url", app.url)


@pytest.fixture(scope="session")
def math_rows(platform: Platform) -> Path:
    """Sums to train on."""
    file = platform.shell.folder / "math.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(8000, seed=0)))
    return file


@pytest.fixture(scope="session")
def sft_model(platform: Platform, math_rows: Path) -> str:
    """A model that is right now and then: RL has a signal from its first step on."""
    job = platform.submit(demo("sft", total_steps=400), "--dataset", str(math_rows))
    return platform.succeeded(job)["model"]


@pytest.fixture(scope="session")
def record_events(platform: Platform):
    """Watches a job's log as it grows."""

    @asynccontextmanager
    async def watch(job: str) -> AsyncIterator[EventRecorder]:
        state = platform.shell.state()
        port = next(p["port"] for p in state["processes"] if p["name"] == "nats")
        settings = ServiceSettings(
            nats_url=f"nats://127.0.0.1:{port}", nats_user="bus", nats_password=SecretStr(state["users"]["bus"])
        )
        bus = await connect(settings, "bus")
        try:
            async with EventRecorder(bus, job) as watching:
                yield watching
        finally:
            await bus.close()

    return watch

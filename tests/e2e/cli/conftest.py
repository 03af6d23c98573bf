"""`synthctl` as a user runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import msgspec
import psutil
import pytest

from synth.bus.server.embedded import free_port
from synth.local.cluster.control import inspect_cluster
from synth.local.cluster.state import StateFile
from tests.forked_cli import forked_cli

#: The folder with the model tiny-qwen3 of this process. Each one that is made is the same.
_models = functools.cache(tempfile.TemporaryDirectory)
OURS = ("SYNTH_API_KEY", "ENVIRONMENT_API_KEY", "BACKEND_BASE_URL", "TASK_APP_URL")


@dataclass
class Shell:
    """A folder, and the commands that are run in it."""

    folder: Path
    port: int = field(default_factory=free_port)

    def start(
        self,
        *arguments: str,
        stdout: int | IO[str] = subprocess.PIPE,
        stderr: int | IO[str] = subprocess.PIPE,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "synth.cli", *arguments],
            cwd=self.folder,
            env=self._environment(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def run(self, *arguments: str, timeout: float = 240, **env: str) -> subprocess.CompletedProcess[str]:
        environment = self._environment(env)
        done = forked_cli().run(arguments, folder=self.folder, environment=environment, timeout=timeout)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if k not in OURS}
        return {**clean, "OMP_NUM_THREADS": "1", **env}

    def make_model(self) -> None:
        """Put the model tiny-qwen3 into the cluster's folder, as `models make` does."""
        made = Path(_models().name) / "tiny-qwen3"
        target = self.folder / ".synth" / "models" / "tiny-qwen3"
        if made.exists():
            shutil.copytree(made, target)
        else:
            self.ok("models", "make", "tiny-qwen3")
            shutil.copytree(target, made)

    def ok(self, *arguments: str, **options: Any) -> str:
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "-o", "json")
        assert done.stdout, f"exit status {done.returncode}, and no output: {done.stderr}"
        return json.loads(done.stdout)

    def report(self) -> dict[str, Any]:
        """What `status -o json` prints, but for the GPUs; no process is started for it."""
        return msgspec.to_builtins(inspect_cluster(StateFile(self.folder / ".synth"), with_gpus=False))

    def processes(self) -> dict[str, dict[str, Any]]:
        return {p["name"]: p for p in self.report()["processes"]}

    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / ".synth" / "cluster.json").read_text())

    def alive(self) -> list[int]:
        """Every process that works on this folder's data, wherever it came from."""
        mine = str(self.folder / ".synth")
        found: list[int] = []
        for process in psutil.process_iter():
            try:
                words = [*" ".join(process.cmdline()).split(), process.environ().get("SYNTH_WORK_DIR", "")]
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if any(word.startswith(mine) for word in words):
                found.append(process.pid)
        return found


def eventually(check: Callable[[], bool], *, timeout: float = 120, every: float = 0.1) -> None:
    """Look each `every` seconds until it is so; fails at the deadline."""
    deadline, pause = time.monotonic() + timeout, threading.Event()
    while not check():
        assert time.monotonic() < deadline, f"not so after {timeout} s"
        pause.wait(every)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder without a cluster; one that a test starts is ended."""
    shell = Shell(tmp_path)
    yield shell
    shell.run("down")
    assert shell.alive() == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A folder with a running cluster and the tiny base model."""
    shell = Shell(tmp_path_factory.mktemp("cluster"))
    shell.ok("up", "--detach", "--port", str(shell.port))
    shell.make_model()
    yield shell
    shell.run("down")
    assert shell.alive() == []

"""A published client as its user has it: an environment of its own, a folder, an `.env`, and commands run there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.e2e.cli.conftest import OURS

SCRIPTS = Path(__file__).with_name("scripts")
#: A client imports for half a minute, and a job of these tests takes as long.
COMMAND_S = 300.0


@dataclass
class Ran:
    """A command that has ended. text: what it printed, both streams."""

    code: int
    text: str

    def found(self, pattern: str) -> str:
        """The first group of the pattern in what was printed."""
        match = re.search(pattern, self.text)
        assert match, f"{pattern!r} is not in:\n{self.text}"
        return match[1]


@dataclass
class Published:
    """One version of a client. root: the gateway's address; folder: where its files are."""

    venv: Path
    folder: Path
    root: str
    api_key: str
    environment_key: str = ""
    task_url: str = ""
    _numbers: count[int] = field(default_factory=count)

    def write(self, text: str, suffix: str = ".toml") -> str:
        """A file in the folder; returns its name."""
        name = f"file-{next(self._numbers)}{suffix}"
        (self.folder / name).write_text(text)
        return name

    def train(
        self, kind: str, config: str, *flags: str, api_key: str | None = None, task_url: str | None = None
    ) -> Ran:
        """`synth-ai train --type KIND`, as a person types it; polls often, so that the tests are quick.

        The keys are variables, too, as in `evaluate`: `make demo` writes a `.env` into this clone.
        """
        env = {
            "SYNTH_API_KEY": api_key or self.api_key,
            "ENVIRONMENT_API_KEY": self.environment_key,
            "TASK_APP_URL": task_url or self.task_url,
        }
        env_file = self.write("".join(f"{name}={value}\n" for name, value in env.items()), ".env")
        options = (
            "--config",
            config,
            "--env-file",
            env_file,
            "--backend",
            f"{self.root}/api",
            "--poll-interval",
            "0.5",
        )
        return self.run(str(self.venv / "bin" / "synth-ai"), "train", "--type", kind, *options, *flags, **env)

    def evaluate(self, config: str, db: str) -> Ran:
        """`synth-ai eval` on the task app, traces kept in `db`.

        The keys are variables, too: importing 0.2.16 reads the first `.env` above its own installation, which is this
        clone's, and a variable is what wins over it.
        """
        keys = {"SYNTH_API_KEY": self.api_key, "ENVIRONMENT_API_KEY": self.environment_key}
        env_file = self.write("".join(f"{name}={value}\n" for name, value in keys.items()), ".env")
        options = ("--config", config, "--url", self.task_url, "--env-file", env_file, "--trace-db", db)
        return self.run(str(self.venv / "bin" / "synth-ai"), "eval", *options, **keys)

    def evaluate_bundled(self, config: str, folder: str, **variables: str) -> Ran:
        """`synth-ai eval` on a task app of the wheel's own, run inside the command. folder: where the wheel has it."""
        env_file = self.write(f"ENVIRONMENT_API_KEY={self.environment_key}\n", ".env")
        apps = self.venv / "lib" / "python3.11" / "site-packages" / folder
        variables = {"SYNTH_TASK_APP_SEARCH_PATH": str(apps), **variables}
        options = ("--config", config, "--env-file", env_file, "--trace-db", "none")
        return self.run(str(self.venv / "bin" / "synth-ai"), "eval", *options, **variables)

    def filter(self, config: str) -> Ran:
        """`synth-ai filter`: from traces to a dataset."""
        return self.run(str(self.venv / "bin" / "synth-ai"), "filter", "--config", config)

    def status(self, *arguments: str) -> Ran:
        """`synth-ai status`: what a person looks at later."""
        return self.run(str(self.venv / "bin" / "synth-ai"), "status", *arguments, "--api-key", self.api_key)

    def script(self, name: str, *arguments: str) -> Any:
        """Run a script of `scripts/` with the client's own Python; what it prints last is JSON."""
        done = self.run(str(self.venv / "bin" / "python"), str(SCRIPTS / name), self.root, self.api_key, *arguments)
        assert done.code == 0, done.text
        return json.loads(done.text.strip().splitlines()[-1])

    def run(self, *command: str, **variables: str) -> Ran:
        """Run a command in the folder. variables: of its environment, beside those that every one has."""
        # Version 0.2.23 ignores SIGINT and SIGTERM once it is imported: only a kill ends it at the deadline.
        clean = {k: v for k, v in os.environ.items() if k not in OURS and not k.startswith("PYTHON")}
        env = {
            "HOME": str(self.folder),
            "BACKEND_BASE_URL": f"{self.root}/api",
            "BACKEND_OVERRIDE": self.root,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=clean | env | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout)

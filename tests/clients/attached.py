"""A process of an installed client that plays rollouts on request (`scripts/agent.py`, `scripts/responses.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients.published import SCRIPTS
from tests.e2e.cli.conftest import OURS


class Agent:
    """One client's process. Rollouts of several threads are played one after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Play, and return what the agent got: `said`, or `error` and `message`."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


@contextmanager
def agent_of(venv: Path, script: str = "agent.py") -> Iterator[Agent]:
    """Run a script of `scripts/` with the Python of an environment while the block runs.

    Our own variables are not passed on, so that none of them helps the client.
    """
    env = {k: v for k, v in os.environ.items() if k not in OURS and not k.startswith(("PYTHON", "OPENAI"))}
    process = subprocess.Popen(
        [str(venv / "bin" / "python"), str(SCRIPTS / script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        yield Agent(process)
    finally:
        process.kill()
        process.wait(10)

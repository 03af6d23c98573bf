"""A training process as its service sees it: a real process, two pipes, and a deadline on every wait."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).parents[3]
_DEADLINE_SECONDS = 90


class LearnerProcess:
    """Starts `python -m synth.trainer.learner` from a bare checkout; kills it on exit if it is still there."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": f"{_ROOT / 'shared'}:{_ROOT / 'services'}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "synth.trainer.learner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._unread: list[dict[str, Any]] = []
        self.checkpoints: dict[int, str] = {}
        """The folder of each step that was saved, as far as was read."""
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def recv(self, *, progress: bool = False) -> dict[str, Any]:
        """The next event that is no checkpoint and no progress (unless asked for); {} at the end of the output."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._unread:
            self._read_one(deadline, progress=progress)
        return self._unread.pop(0)

    def checkpoint(self, step: int) -> str:
        """The folder of the checkpoint of a step, when it is durable."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while step not in self.checkpoints:
            assert not self._unread or self._unread[-1], f"it ended: {self._unread}"
            self._read_one(deadline)
        return self.checkpoints[step]

    def _read_one(self, deadline: float, *, progress: bool = False) -> None:
        line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        event = json.loads(line) if line else {}
        if event.get("event") == "saved":
            self.checkpoints[event["step"]] = event["folder"]
            with contextlib.suppress(BrokenPipeError):
                self.send(op="stored", step=event["step"])
        elif progress or event.get("event") != "progress":
            self._unread.append(event)

    def kill(self) -> None:
        """SIGKILL, as a machine that loses power would."""
        self.process.kill()
        self.process.wait(10)

    def close_stdin(self) -> int:
        """What the child sees when its service dies; returns the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(_DEADLINE_SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

"""A training process as its service sees it: a real process, two pipes, and a deadline on every wait."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import msgspec

from synth.methods.base import TrainingJob
from synth.runtime.forking.parent import FORK
from synth.trainer.machine import ONE_CPU, Machine

_ROOT = Path(__file__).parents[3]
_DEADLINE_SECONDS = 90


class _ForkServer:
    """The parent of the training processes of these tests, from a bare checkout, as a service starts it."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": f"{_ROOT / 'shared'}:{_ROOT / 'services'}", "OMP_NUM_THREADS": "1"}
        self._control, theirs = socket.socketpair()
        arguments = [sys.executable, "-m", "synth.trainer.learner.fork_server", str(theirs.fileno())]
        with theirs:
            subprocess.Popen(arguments, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=env)
        self._reports = self._control.makefile("r")
        self._statuses: dict[int, int] = {}

    def fork(self, fds: list[int]) -> int:
        """Start a training process on these pipes; return its pid."""
        socket.send_fds(self._control, [FORK], fds)
        while (pid := self._read_report(_DEADLINE_SECONDS)) is None:
            pass
        return pid

    def wait(self, pid: int, timeout: float) -> int:
        """Wait for the end of a process; return its exit code."""
        while pid not in self._statuses:
            self._read_report(timeout)
        return self._statuses[pid]

    def _read_report(self, timeout: float) -> int | None:
        """Read what the server reports next: the pid of a process that it has started, or None for one that ended."""
        self._control.settimeout(timeout)
        kind, pid, *status = self._reports.readline().split()
        if kind == "ended":
            self._statuses[int(pid)] = int(status[0])
            return None
        return int(pid)


_fork_server = functools.cache(_ForkServer)


class _Process:
    """A training process: its pipes, its pid and its end."""

    def __init__(self) -> None:
        child_in, stdin = os.pipe()
        stdout, child_out = os.pipe()
        with open(os.devnull, "wb") as devnull:
            self.pid = _fork_server().fork([child_in, child_out, devnull.fileno()])
        os.close(child_in)
        os.close(child_out)
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process; return its exit code."""
        return _fork_server().wait(self.pid, timeout)

    def kill(self) -> None:
        """Kill the process if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class LearnerProcess:
    """A training process; it is killed on exit if it is still there."""

    def __init__(self) -> None:
        self.process = _Process()
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
        self.process.stdin.close()
        return self.process.wait(_DEADLINE_SECONDS)

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")


def start_message(
    work: Path, model_dir: Path, job: TrainingJob, *, machine: Machine = ONE_CPU, **more: Any
) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    return {
        "op": "start",
        "job": msgspec.to_builtins(job),
        "machine": msgspec.to_builtins(machine),
        "model_dir": str(model_dir),
        "adapter_dir": None,
        "resume_dir": None,
        "work_dir": str(work),
        "dataset": None,
        "validation": None,
        **more,
    }

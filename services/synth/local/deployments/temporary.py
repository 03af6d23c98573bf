"""A task app that is served while a command runs, in its own process, whose output goes to a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from synth.local.deployments.worker import UNTIL_STDIN_ENDS
from synth.local.processes.files import failure
from synth.local.processes.http import answers
from synth.local.processes.running import end_group
from synth.taskapp.server import GRACE_S, listen, url_of

_WORKER = (sys.executable, "-P", "-m", "synth.local.deployments.worker")
_LOOK_S = 1.0


@contextmanager
def serving(place: str, *, log: Path, show: Callable[[str], None]) -> Iterator[str]:
    """Serve the app at an address of this machine while the block runs. place: as `locate` returns it.

    Raises `CliError` with the end of its log if it ends before it answers.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    listener = listen("127.0.0.1", 0)
    url = url_of(listener)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_WORKER, UNTIL_STDIN_ENDS, place, str(listener.fileno())],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Nothing is written to it: it ends with this process, however that ends.
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    # Close our copy of the socket, so that calls to a dead app fail at once instead of waiting.
    listener.close()
    try:
        show("waiting for the task app")
        _wait(process, url, log)
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S + 4.0)
        end_group(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    while not answers(url, timeout=_LOOK_S):
        if process.poll() is not None:
            raise failure(f"the task app ended with code {process.returncode} before it answered", log)

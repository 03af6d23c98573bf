"""`synthctl` as forks of a process that has imported it: a start takes a tenth of the CPU time.

`python -m tests.forked_cli FD` is that process. A request has four descriptors: a file with a `Command` as JSON, stdin,
stdout and stderr.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from synth.runtime.forking.parent import FORK, ForkParent

_ROOT = Path(__file__).parents[1]


class Command(msgspec.Struct):
    """A call of `synthctl`."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


class ForkedCli:
    """One parent, and the commands that run as its forks."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.forked_cli", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )
        self._lock = threading.Lock()
        self._starting: list[Future[int]] = []
        self._running: dict[int, Future[int]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        timeout: float,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises `subprocess.TimeoutExpired`; nothing of the command runs then.

        input: what it can read on stdin.
        """
        command = Command(list(arguments), str(folder), dict(environment))
        with _file(msgspec.json.encode(command)) as request, _file((input or "").encode()) as stdin:
            return self._run(command, request, stdin, timeout)

    def _run(
        self, command: Command, request: IO[bytes], stdin: IO[bytes], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        with _file(b"") as out, _file(b"") as err:
            forked: Future[int] = Future()
            with self._lock:
                self._starting.append(forked)
                socket.send_fds(self._control, [FORK], [file.fileno() for file in (request, stdin, out, err)])
            pid = forked.result(60)
            try:
                code = self._running[pid].result(timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command.arguments, timeout) from None
            finally:
                del self._running[pid]
            texts = [_text(file.fileno()) for file in (out, err)]
        return subprocess.CompletedProcess(command.arguments, code, *texts)

    def _read(self) -> None:
        """Take the parent's reports. A fork is reported before its end."""
        with self._control.makefile("rb") as reports:
            for line in reports:
                kind, pid, *status = line.split()
                if kind == b"forked":
                    self._running[int(pid)] = Future()
                    self._starting.pop(0).set_result(int(pid))
                elif (ended := self._running.get(int(pid))) is not None:
                    ended.set_result(int(status[0]))


@contextmanager
def _file(content: bytes) -> Iterator[IO[bytes]]:
    """A file without a name that is read from its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


def _text(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode()


#: The parent of this process's commands.
forked_cli = functools.cache(ForkedCli)


def main() -> None:
    """Import the commands, and run one for each request."""
    import synth.cli.commands
    from synth.cli import app

    parent = ForkParent(socket.socket(fileno=int(sys.argv[1])))
    for module in pkgutil.walk_packages(synth.cli.commands.__path__, "synth.cli.commands."):
        importlib.import_module(module.name)
    for name in ("httpx", "synth.cli.submission", "synth.taskapp.sdk", "rich.live", "rich.table", "uvicorn"):
        importlib.import_module(name)
    # Building all commands takes longer than most of them, and the result is the same each time.
    app.build = functools.cache(app.build)
    app.build().commands.values()
    # A command then imports what `synthctl` does: neither this package nor what lies in the root of the repository.
    sys.path.remove(str(_ROOT))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]

    def run(fds: list[int]) -> None:
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            command = msgspec.json.decode(file.read(), type=Command)
        for number in range(3):
            os.dup2(fds[number + 1], number)
        for fd in fds:
            os.close(fd)
        os.chdir(command.folder)
        os.environ.clear()
        os.environ.update(command.environment)
        sys.argv = ["synthctl", *command.arguments]
        app.program()

    parent.serve(lambda fds: parent.fork(functools.partial(run, fds)), descriptors=4)


if __name__ == "__main__":
    main()

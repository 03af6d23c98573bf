"""The parent of training processes, `python -m synth.trainer.learner.fork_server FD`.

To import torch and transformers takes seconds of CPU time and hundreds of megabytes. This process does it once; a fork
of it starts in milliseconds and shares the memory. It runs no job itself, so that nothing of a job, not even the state
of its allocator, can reach the next one.

FD is a Unix socket. On it the trainer sends `fork` with three file descriptors (stdin, stdout and stderr of a training
process) and receives `forked PID`; when a process has ended, it receives `ended PID STATUS`. When the socket closes,
this process ends; a training process ends when its stdin closes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

from synth.runtime.startup import collector_off
from synth.trainer.protocol import FORK


def main() -> NoReturn:
    """Serve the socket until it closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with collector_off():
        from synth.trainer.learner.main import warm_up

        warm_up()
    can_fork = _can_fork()
    signals, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with contextlib.suppress(ConnectionError):
        while True:
            readable, _, _ = select.select([control, signals], [], [])
            if signals in readable:
                os.read(signals, 4096)
                _report_ended(control)
            if control in readable:
                request, fds, _, _ = socket.recv_fds(control, len(FORK), 3)
                if not request:
                    break
                pid = _fork(fds, [control.fileno(), signals, signalled]) if can_fork else _spawn(fds)
                for fd in fds:
                    os.close(fd)
                control.sendall(b"forked %d\n" % pid)
    os._exit(0)


def _can_fork() -> bool:
    """Whether a fork can use the devices. It cannot if an import has initialised CUDA, which torch knows in a fork."""
    if sys.platform != "linux":
        return False  # macOS: its frameworks end a fork that uses them
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(torch.cuda._is_in_bad_fork())  # pyright: ignore[reportPrivateUsage]
    return os.waitpid(pid, 0)[1] == 0


def _fork(fds: list[int], unused: list[int]) -> int:
    """Start a training process on these pipes as a fork; return its pid. unused: what the fork closes."""
    pid = os.fork()
    if pid:
        return pid
    try:
        from synth.trainer.learner.main import main as train

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        for fd in [*fds, *unused]:
            os.close(fd)
        train()
    except BaseException:  # noqa: BLE001 - the edge of the process: its stderr goes to the trainer's log
        traceback.print_exc()
    os._exit(1)


def _spawn(fds: list[int]) -> int:
    """As `_fork`, with a process that imports what it needs itself."""
    arguments = [sys.executable, "-m", "synth.trainer.learner"]
    pipes = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
    return os.posix_spawn(sys.executable, arguments, os.environ, file_actions=pipes)


def _report_ended(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):  # there is no process left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            control.sendall(b"ended %d %d\n" % (ended[0], os.waitstatus_to_exitcode(ended[1])))


if __name__ == "__main__":
    main()

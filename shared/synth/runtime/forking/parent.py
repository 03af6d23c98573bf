"""The parent process: it imports the modules of its forks once, and runs none of their work itself.

An import of torch and transformers takes seconds of CPU time and hundreds of megabytes. A fork of a process that has
done it starts in milliseconds and shares the memory. No data of one fork can reach the next one.

The parent serves a Unix socket. Each request is `FORK` with file descriptors, whose meaning the caller defines. The
parent answers `forked PID`, and sends `ended PID STATUS` when a fork has ended. It ends when the socket closes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

#: A request. Its descriptors come with it.
FORK = b"fork\n"


class ForkParent:
    """This process as a parent. control: its end of the socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._signals, self._signalled = os.pipe()
        os.set_blocking(self._signalled, False)
        signal.set_wakeup_fd(self._signalled)
        signal.signal(signal.SIGCHLD, _wake_up)

    def serve(self, start: Callable[[list[int]], int], *, descriptors: int) -> NoReturn:
        """Call `start` with the descriptors of each request, until the socket closes; then end this process.

        start: starts a process and returns its pid. descriptors: the number of them in a request.
        """
        # A poll has no descriptor that forks would inherit, and takes descriptors above 1,023.
        with contextlib.suppress(ConnectionError), selectors.PollSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            while True:
                readable = [key.fileobj for key, _ in selector.select()]
                if self._signals in readable:
                    os.read(self._signals, 4096)
                    self._report_ended()
                if self._control in readable:
                    request, fds, _, _ = socket.recv_fds(self._control, len(FORK), descriptors)
                    if not request:
                        break
                    pid = start(fds)
                    for fd in fds:
                        os.close(fd)
                    self._control.sendall(b"forked %d\n" % pid)
        os._exit(0)

    def fork(self, run: Callable[[], object]) -> int:
        """Call `run` in a fork, which ends with code 1 if `run` does not end it; return the pid of the fork."""
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._control.fileno(), self._signals, self._signalled):
                os.close(fd)
            run()
        except BaseException:  # noqa: BLE001 - the edge of the process: its stderr goes to a log
            traceback.print_exc()
        os._exit(1)

    def _report_ended(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there is no process left
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._control.sendall(b"ended %d %d\n" % (ended[0], os.waitstatus_to_exitcode(ended[1])))


def _wake_up(sign: int, frame: FrameType | None) -> None:
    """Do nothing: a signal that has a handler is written to the wakeup descriptor."""


def can_fork() -> bool:
    """Return whether a fork can use the devices. Call it after torch was imported.

    It cannot if an import has initialised CUDA, which torch detects in a fork.
    """
    if sys.platform != "linux":
        return False  # macOS: its frameworks end a fork that uses them
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(torch.cuda._is_in_bad_fork())  # pyright: ignore[reportPrivateUsage]
    return os.waitpid(pid, 0)[1] == 0

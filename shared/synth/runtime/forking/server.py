"""A parent process (`synth.runtime.forking.parent`) and its forks, for the process that uses them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Self

from synth.runtime.child_process import end_child
from synth.runtime.forking.parent import FORK


class ForkedProcess:
    """A fork. pid: 0 until the parent has forked it. `asyncio.subprocess.Process` has the same interface."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self.pid = 0
        self._forked = asyncio.Event()
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """The exit code; negative for a signal; None while the process runs."""
        return self._status.result() if self._status.done() else None

    async def forked(self) -> bool:
        """Wait for the fork. Returns False if the parent ended before it."""
        await self._forked.wait()
        return self.pid != 0

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return await asyncio.shield(self._status)

    def send_signal(self, sign: int) -> None:
        """Signal the process, if it has been forked and has not ended."""
        if self.pid and not self._status.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sign)

    def kill(self) -> None:
        """Kill the process if it has not ended; before its fork, kill the parent that does not fork it."""
        if self.pid:
            self.send_signal(signal.SIGKILL)
        elif not self._status.done():
            self._server.kill()

    def set_pid(self, pid: int) -> None:
        """Store the pid of the fork."""
        self.pid = pid
        self._forked.set()

    def set_status(self, status: int) -> None:
        """Store the exit code."""
        self._forked.set()
        if not self._status.done():
            self._status.set_result(status)


class ForkServer:
    """One parent process. Its forks are killed when it ends before them.

    pid: of the parent. process: the parent, if this process has started it with `start`. has_forked: whether it has
    ever forked a process.
    """

    def __init__(self, pid: int, control: socket.socket, process: asyncio.subprocess.Process | None = None) -> None:
        self.pid, self._control, self._process = pid, control, process
        control.setblocking(False)
        self.has_forked = False
        self._starting: list[ForkedProcess] = []
        self._running: dict[int, ForkedProcess] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: int | None
    ) -> Self:
        """Start `python -m MODULE FD ARGUMENTS…`. It begins with its imports. log: for its output; None inherits."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(theirs.fileno()), *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        return cls(process.pid, ours, process)

    @property
    def alive(self) -> bool:
        """Whether the parent has not ended."""
        return not self._reader.done() and (self._process is None or self._process.returncode is None)

    def fork(self, process: ForkedProcess, fds: Sequence[int]) -> None:
        """Request the fork of a process once the parent has finished its imports, with these descriptors."""
        self._starting.append(process)
        try:
            socket.send_fds(self._control, [FORK], list(fds))
        except OSError:  # the parent has ended, or the socket is full of requests: the process ends unstarted
            self._starting.remove(process)
            process.set_status(-signal.SIGKILL)

    def kill(self) -> None:
        """Kill the parent, and so its forks."""
        if not self._reader.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End the parent and its forks."""
        self.kill()
        if self._process is not None:
            await end_child(self._process)
        await self._reader

    async def _read(self) -> None:
        """Follow the parent's reports until it ends."""
        loop, rest = asyncio.get_running_loop(), b""
        with contextlib.suppress(ConnectionError), self._control:
            while received := await loop.sock_recv(self._control, 4096):
                *lines, rest = (rest + received).split(b"\n")
                for line in lines:
                    self._take(line.split())
        for process in [*self._running.values(), *self._starting]:
            process.send_signal(signal.SIGKILL)
            process.set_status(-signal.SIGKILL)
        if self._process is None:
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, self.pid, 0)

    def _take(self, report: list[bytes]) -> None:
        match report:
            case [b"forked", pid]:
                process = self._starting.pop(0)
                process.set_pid(int(pid))
                self.has_forked = True
                self._running[process.pid] = process
            case [b"ended", pid, status]:
                # A process that the parent has started for itself is not one of ours.
                if (process := self._running.pop(int(pid), None)) is not None:
                    process.set_status(int(status))
            case _:
                raise ValueError(f"unknown report of the parent: {report}")

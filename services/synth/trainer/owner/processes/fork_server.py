"""The parent of training processes as the trainer sees it: see `synth.trainer.learner.fork_server`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Self

from synth.runtime.child_process import end_child
from synth.trainer.protocol import FORK

# A message holds the figures of every step since the last checkpoint, as many as the job says.
_UNLIMITED_LINE = 1 << 62


class ForkedProcess:
    """A training process, with the interface of `asyncio.subprocess.Process`.

    pid: 0 until the fork server has finished its imports.
    """

    def __init__(self, server: ForkServer, pipes: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._server, self._pipes = server, pipes
        self.stdin, self.stdout, self.stderr = pipes[0][1], pipes[1][0], pipes[2][0]
        self.pid = 0
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """The exit code; negative for a signal; None while the process runs."""
        return self._status.result() if self._status.done() else None

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return await asyncio.shield(self._status)

    def kill(self) -> None:
        """Kill the process if it has not ended; before it has started, kill the server that does not start it."""
        if self._status.done():
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        else:
            self._server.kill()

    async def end(self) -> None:
        """Kill the process, close its pipes from this side, and return when it is gone."""
        self.kill()
        for _, writer in self._pipes:
            writer.close()
        await self.wait()

    def set_status(self, status: int) -> None:
        """Store the exit code."""
        if not self._status.done():
            self._status.set_result(status)


class ForkServer:
    """One fork server. Its processes are killed when it ends before them."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process, self._control = process, control
        self._starting: list[ForkedProcess] = []
        self._running: dict[int, ForkedProcess] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, environment: Mapping[str, str]) -> Self:
        """Start a server. It begins with its imports, which take seconds."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "synth.trainer.learner.fork_server", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the server has not ended."""
        return self._process.returncode is None and not self._reader.done()

    async def fork(self) -> ForkedProcess:
        """Start a training process. It starts when the server has finished its imports; what it is sent waits."""
        pairs = [socket.socketpair() for _ in range(3)]
        pipes = [await asyncio.open_connection(sock=ours, limit=_UNLIMITED_LINE) for ours, _ in pairs]
        process = ForkedProcess(self, pipes)
        self._starting.append(process)
        # The socket has room for five bytes. If the server has ended, it is closed, and the process ends unstarted.
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [FORK], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        if self._reader.done():
            process.set_status(-signal.SIGKILL)
        return process

    def kill(self) -> None:
        """Kill the server, and so its processes."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the server and its processes."""
        await end_child(self._process)
        await self._reader

    async def _read(self) -> None:
        """Follow the server's reports until it ends."""
        loop, rest = asyncio.get_running_loop(), b""
        with contextlib.suppress(ConnectionError), self._control:
            while received := await loop.sock_recv(self._control, 4096):
                *lines, rest = (rest + received).split(b"\n")
                for line in lines:
                    self._take(line.split())
        for process in [*self._running.values(), *self._starting]:
            if process.pid:
                process.kill()
            process.set_status(-signal.SIGKILL)

    def _take(self, report: list[bytes]) -> None:
        match report:
            case [b"forked", pid]:
                process = self._starting.pop(0)
                process.pid = int(pid)
                self._running[process.pid] = process
            case [b"ended", pid, status]:
                self._running.pop(int(pid)).set_status(int(status))
            case _:
                raise ValueError(f"unknown report of the fork server: {report}")

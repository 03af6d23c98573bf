"""Start training processes as forks of a parent that has already imported the modules that they need."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Self

from synth.runtime.environment.child_environment import child_environment
from synth.runtime.forking.server import ForkedProcess, ForkServer

# A message holds the figures of every step since the last checkpoint, and the job sets how many steps that is.
_UNLIMITED_LINE = 1 << 62


class TrainingFork(ForkedProcess):
    """A training process, with its pipes."""

    def __init__(self, server: ForkServer, pipes: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        super().__init__(server)
        self._pipes = pipes
        self.stdin, self.stdout, self.stderr = pipes[0][1], pipes[1][0], pipes[2][0]

    @classmethod
    async def start(cls, server: ForkServer) -> Self:
        """Start a process. It runs when the parent has finished its imports; messages sent before that are kept."""
        pairs = [socket.socketpair() for _ in range(3)]
        process = cls(server, [await asyncio.open_connection(sock=ours, limit=_UNLIMITED_LINE) for ours, _ in pairs])
        server.fork(process, [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        return process

    async def end(self) -> None:
        """Kill the process, close its pipes from this side, and return when it is gone."""
        self.kill()
        for _, writer in self._pipes:
            writer.close()
        await self.wait()


def training_environment() -> dict[str, str]:
    """Return the environment of training processes."""
    return {
        **child_environment(),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # To ask CUDA itself how many devices there are would initialise it, and no fork could use it.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


@dataclass(frozen=True)
class ReadyParent:
    """A parent that was forked off this process before its service started."""

    pid: int
    control: socket.socket
    environment: dict[str, str]


#: The parent that this process was given, until the service takes it.
_ready: list[ReadyParent] = []


def fork_parent(keys: int) -> None:
    """Fork a parent of training processes off this process, which has imported their modules and has one thread.

    keys: the descriptor of a file with keys, which this process has not read, and the parent must not have.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return  # torch has chosen another number of threads at its import
    environment = training_environment()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        from synth.trainer.learner import fork_server

        ours.close()
        os.close(keys)
        os.environ.clear()
        os.environ.update(environment)
        fork_server.serve(theirs)
    theirs.close()
    _ready.append(ReadyParent(pid, ours, environment))


async def start_server() -> ForkServer:
    """Return the parent that this process was given, if it has the right environment; otherwise a new one.

    A new one begins with its imports, which take seconds.
    """
    environment = training_environment()
    while _ready:
        ready = _ready.pop()
        server = ForkServer(ready.pid, ready.control)
        if ready.environment == environment:
            return server
        await server.close()
    return await ForkServer.start("synth.trainer.learner.fork_server", [], environment, None)

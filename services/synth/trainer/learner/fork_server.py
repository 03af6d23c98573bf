"""`python -m synth.trainer.learner.fork_server FD`: the parent of training processes.

`synth.runtime.forking.parent` describes the socket FD. The parent runs no job itself, so that nothing of
a job, not even the state of its allocator, can reach the next one. A request has three file descriptors: stdin, stdout
and stderr of a training process, which ends when its stdin closes.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from typing import NoReturn

from synth.runtime.forking.parent import ForkParent, can_fork
from synth.runtime.startup import collector_off


def main() -> NoReturn:
    """Import what training needs, and serve the socket FD until it closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with collector_off():
        from synth.trainer.learner.main import warm_up

        warm_up()
    serve(control)


def serve(control: socket.socket) -> NoReturn:
    """Serve the socket until it closes. This process has imported what training needs."""
    forks = can_fork()
    parent = ForkParent(control)

    def start(fds: list[int]) -> int:
        return parent.fork(functools.partial(_train, fds)) if forks else _spawn(fds)

    parent.serve(start, descriptors=3)


def _train(fds: list[int]) -> None:
    from synth.trainer.learner.main import main as train

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    train()


def _spawn(fds: list[int]) -> int:
    """Start a training process on these pipes without a fork of this process; return its pid."""
    arguments = [sys.executable, "-m", "synth.trainer.learner"]
    pipes = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
    return os.posix_spawn(sys.executable, arguments, os.environ, file_actions=pipes)


if __name__ == "__main__":
    main()

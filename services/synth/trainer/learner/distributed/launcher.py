"""How rank 0 starts the other ranks, forwards the service's messages to them, and watches them.

The ranks have torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), but no
launcher above them: rank 0 is the process that the service watches.

Invariants: when rank 0 ends, the input of the other ranks ends, and they exit; a rank that fails sends why, and the
whole group ends with that reason; when a rank ends without a message (killed, out of memory in the kernel), the group
ends without a message too, so that another attempt resumes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from synth.trainer.protocol import Failed

#: Seconds. A rank that is killed breaks the collectives of the others; within this time its own end is seen too.
_GRACE_S = 5.0
_EXIT_LOST_RANK = 4


class RankLauncher:
    """Starts and watches ranks 1 to `world_size` - 1."""

    def __init__(self, world_size: int, *, port: int, fail: Callable[[Failed], NoReturn]) -> None:
        """port: of rank 0's store. fail: ends this process with the reason that another rank gave."""
        self._fail = fail
        self._rank_failed = threading.Event()
        self._rank_lost = threading.Event()
        self._processes = [_start_rank(rank, world_size, port) for rank in range(1, world_size)]
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def forward(self, line: bytes) -> None:
        """Send a line of the service to every other rank."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                # The rank has ended: its watcher reports why, and ends this process.
                continue

    def wait_for_rank_failure(self) -> None:
        """Wait, after an error that another rank's end may have caused, so that its watcher can report it."""
        if self._rank_failed.wait(_GRACE_S):
            time.sleep(2 * _GRACE_S)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        output = process.stdout.read()
        code = process.wait()
        if code == 0:
            return
        self._rank_failed.set()
        try:
            failed = msgspec.json.decode(output, type=Failed)
        except msgspec.DecodeError:  # killed, before or while it wrote its reason
            self._rank_lost.set()
            print(f"rank {rank} ended by itself ({code})", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(_EXIT_LOST_RANK)
        if failed.code == "internal" and self._rank_lost.wait(_GRACE_S):
            return
        self._fail(Failed(code=failed.code, detail=f"rank {rank}: {failed.detail}"))


def _start_rank(rank: int, world_size: int, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **{name: str(rank) for name in ("RANK", "LOCAL_RANK")},
        **{name: str(world_size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "synth.trainer.learner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )

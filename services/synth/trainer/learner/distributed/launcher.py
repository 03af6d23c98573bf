"""The other processes of a training group, as rank 0 has them: started, told what it is told, and watched.

They have torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), but no
launcher above them: rank 0 is the process that the service watches.

Invariants: the end of rank 0 is the end of their input, which ends them; a rank that fails says why and ends the group
with it; one that ends without a word (killed, out of memory in the kernel) ends the group without a word, so that
another attempt resumes.
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

#: A rank that is killed breaks the others' collectives: within so many seconds its own end is known too.
_GRACE = 5.0
_LOST = 4


class Followers:
    """Ranks 1 and up of a group of `size`."""

    def __init__(self, size: int, *, port: int, fail: Callable[[Failed], NoReturn]) -> None:
        """port: where rank 0 listens for them. fail: ends this process with the reason that one of them gave."""
        self._fail = fail
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._processes = [_start(rank, size, port) for rank in range(1, size)]
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def tell(self, line: bytes) -> None:
        """Pass on a line of the service's."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                # It is gone: its watcher knows why, and ends this process.
                continue

    def settle(self) -> None:
        """After an error here that another rank's end may have caused: let its watcher say so, if there is one."""
        if self._ended.wait(_GRACE):
            time.sleep(2 * _GRACE)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        said = process.stdout.read()
        code = process.wait()
        if code == 0:
            return
        self._ended.set()
        try:
            failed = msgspec.json.decode(said, type=Failed)
        except msgspec.DecodeError:  # killed, before it had said anything or in the middle of it
            self._lost.set()
            print(f"rank {rank} ended by itself ({code})", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(_LOST)
        if failed.code == "internal" and self._lost.wait(_GRACE):
            return
        self._fail(Failed(code=failed.code, detail=f"rank {rank}: {failed.detail}"))


def _start(rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
    group = {
        **{name: str(rank) for name in ("RANK", "LOCAL_RANK")},
        **{name: str(size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "synth.trainer.learner.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **group},
    )

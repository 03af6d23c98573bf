"""Writes checkpoints while training continues: one at a time, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.checkpoint.snapshot import Snapshot
from synth.trainer.learner.step_result import ProgressCallback
from synth.weights.tensor_file import FileDigest

_SIGN_SECONDS = 0.5


class BackgroundWriter:
    """Writes the snapshots of one training process.

    saved: called, in the thread, with the step, the folder and the digest of each of its files, when all of it is
    durable; on rank 0 alone. failed: called, in the thread, with the error that ended a write. wait_for_room: returns
    when another checkpoint may be written.
    """

    def __init__(
        self,
        *,
        saved: Callable[[int, Path, dict[str, FileDigest]], None],
        failed: Callable[[Exception], None],
        progress: ProgressCallback,
        wait_for_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._saved = saved
        self._failed = failed
        self._progress = progress
        self._wait_for_room = wait_for_room
        self._thread: threading.Thread | None = None
        self._written, self._size = 0, 0
        self._blocked_s = 0.0

    def save(self, folder: Path, take_snapshot: Callable[[], Snapshot]) -> None:
        """Wait for the write before, take a snapshot, and begin to write it to a folder. Every rank calls this."""
        started = time.perf_counter()
        self.wait()
        self._wait_for_room()
        # The first one allocates as much memory as it copies, and pins it.
        self._progress("checkpoint", 0, 1)
        snapshot = take_snapshot()
        self._blocked_s += time.perf_counter() - started
        self._written, self._size = 0, snapshot.size
        self._thread = threading.Thread(target=self._write, args=(folder, snapshot), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written. Reports the progress, so that a long write does not count as hung."""
        reported = -1
        while self._thread is not None:
            if reported != self._written:
                reported = self._written
                self._progress("checkpoint", reported, self._size)
            self._thread.join(_SIGN_SECONDS)
            if not self._thread.is_alive():
                self._thread = None

    def metrics(self) -> dict[str, float]:
        """Return `seconds_checkpoint`: how long training has waited for checkpoints since the last call."""
        blocked, self._blocked_s = self._blocked_s, 0.0
        return {"seconds_checkpoint": blocked}

    def _write(self, folder: Path, snapshot: Snapshot) -> None:
        try:
            files = write_checkpoint(folder, snapshot, progress=self._add)
            if snapshot.rank == 0:
                self._saved(snapshot.state.step, folder, files)
        except Exception as error:  # noqa: BLE001  (the edge of the thread)
            self._failed(error)

    def _add(self, count: int) -> None:
        self._written += count

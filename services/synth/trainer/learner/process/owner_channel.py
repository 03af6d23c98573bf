"""The two pipes between a training process and its parent: the service, or rank 0 of the group."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import IO, NoReturn

import msgspec

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.distributed.launcher import RankLauncher
from synth.trainer.learner.distributed.process_group import (
    SINGLE_PROCESS,
    ProcessGroup,
    bind_store,
    init_process_group,
)
from synth.trainer.machine import Machine
from synth.trainer.protocol import Failed, Finish, Pause, Progressed, Saved, Start, Stored, TrainBatch

_PROGRESS_SECONDS = 0.5
_EXIT_ORPHANED = 3
#: Checkpoints that the owner has not stored yet while another one is written: a slow store must not fill the disk.
_UNSTORED = 1


class _Op(msgspec.Struct):
    op: str = ""


class OwnerChannel:
    """Messages from and to the owner of this process. A rank other than 0 sends nothing but why it fails."""

    def __init__(self, lines_in: IO[bytes], lines_out: IO[bytes]) -> None:
        self._out = lines_out
        self._write_lock = threading.Lock()
        self._rank = int(os.environ.get("RANK", "0"))
        self._launcher: RankLauncher | None = None
        self._last_line = b""
        self._in: queue.Queue[bytes] = queue.Queue()
        self._unstored, self._stored = 0, threading.Condition()
        self._last_progress, self._last_stage = 0.0, ""
        threading.Thread(target=self._read, args=(lines_in,), daemon=True).start()

    def recv(self) -> Start | TrainBatch | Pause | Finish:
        """Wait for the next message; rank 0 forwards it to the other ranks. Raises `TrainingFailed` (bad_message)."""
        line = self._last_line = self._in.get()
        if self._launcher is not None:
            self._launcher.forward(line)
        try:
            return msgspec.json.decode(line, type=Start | TrainBatch | Pause | Finish)
        except msgspec.DecodeError as error:
            raise TrainingFailed("bad_message", f"{error}: {line[:200]!r}") from error

    def has_message(self) -> bool:
        """Return whether `recv` would return at once."""
        return not self._in.empty()

    def send(self, event: msgspec.Struct) -> None:
        """Send one event, from rank 0 alone."""
        if self._rank == 0:
            if isinstance(event, Saved):
                with self._stored:
                    self._unstored += 1
            with self._write_lock:
                self._write(event)

    def wait_stored(self) -> None:
        """Return when the owner has stored all checkpoints but one. Each store has a deadline, which is the owner's."""
        with self._stored:
            while self._unstored > _UNSTORED:
                self.send_progress("store", 0, 1)
                self._stored.wait(_PROGRESS_SECONDS)

    def send_progress(self, stage: str, done: int, of: int) -> None:
        """Send a sign of life, at most two a second of one stage."""
        now = time.monotonic()
        if stage != self._last_stage or now - self._last_progress >= _PROGRESS_SECONDS:
            self._last_progress, self._last_stage = now, stage
            self.send(Progressed(stage=stage, done=done, of=of))

    def fail(self, failed: Failed) -> NoReturn:
        """Send why this process fails, from any rank, and exit with code 1."""
        if failed.code == "internal" and self._launcher is not None:
            self._launcher.wait_for_rank_failure()
        self._exit_with(failed)

    def init_process_group(self, machine: Machine) -> ProcessGroup:
        """Join the group that trains the job, after `start` was received. Rank 0 launches the other ranks first."""
        if machine.world_size == 1:
            return SINGLE_PROCESS
        if self._rank:
            port = int(os.environ["MASTER_PORT"])
            return init_process_group(self._rank, machine.world_size, device=machine.device, port=port)
        store_socket = bind_store()
        port = store_socket.getsockname()[1]
        self._launcher = RankLauncher(machine.world_size, port=port, fail=self._exit_with)
        self._launcher.forward(self._last_line)
        self.send_progress("join", 0, 1)
        return init_process_group(0, machine.world_size, device=machine.device, port=port, store_socket=store_socket)

    def _exit_with(self, failed: Failed) -> NoReturn:
        with self._write_lock:
            self._write(failed)
            os._exit(1)

    def _write(self, event: msgspec.Struct) -> None:
        self._out.write(msgspec.json.encode(event) + b"\n")
        self._out.flush()

    def _read(self, lines_in: IO[bytes]) -> None:
        for line in lines_in:
            if _is_stored(line):
                with self._stored:
                    self._unstored -= 1
                    self._stored.notify_all()
            else:
                self._in.put(line)
        # The owner has ended: unannounced work must not hold a GPU. Nothing durable is half-written.
        os._exit(_EXIT_ORPHANED)


def _is_stored(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Op).op == Stored.__struct_config__.tag
    except msgspec.DecodeError:
        return False  # `recv` raises the error

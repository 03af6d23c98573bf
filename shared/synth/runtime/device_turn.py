"""Turns at a device that two processes share: an OS lock on a file.

Invariants: the holder of the turn holds the lock, and has given the device's memory back before it lets go; the kernel
frees the lock of a process that dies, so that a dead holder's turn is free. Turns are handed on in order: a waiting
process holds a second lock, on `<file>.next`, so that a holder sees that it is awaited, and a process that has just let
go queues up behind it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from synth.errors import Transient

#: How often a waiting process looks; a turn lasts seconds.
POLL_S = 0.02


class TurnHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a turn. who: `trainer` or a replica of inference. job: the job that it is for, "" for none."""

    pid: int
    who: str
    job: str = ""


class TurnTimeout(Transient):
    """The turn did not come within the time allowed."""


class DeviceTurn:
    """One process's side of a turn. Not for two threads at once.

    who: the name of this process in the file, for messages of other processes.
    """

    def __init__(self, file: Path, *, who: str) -> None:
        self._file = file
        self._who = who
        self._lock: int | None = None
        self._next: int | None = None
        self._since = 0.0

    @property
    def held(self) -> bool:
        """Whether this process has the turn."""
        return self._lock is not None

    @property
    def held_s(self) -> float:
        """For how many seconds this process has had the turn."""
        return time.monotonic() - self._since if self.held else 0.0

    def try_take(self, *, job: str = "") -> bool:
        """Take the turn if it is free, else queue up for it; returns whether it was taken. Never blocks.

        A caller that stops trying calls `leave_queue`.
        """
        if self.held:
            return True
        if self._next is None:
            self._next = _try_lock(self._next_file)
        if self._next is None:
            return False
        self._lock = _try_lock(self._file)
        if self._lock is None:
            return False
        self.leave_queue()
        self._since = time.monotonic()
        holder = TurnHolder(pid=os.getpid(), who=self._who, job=job)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, msgspec.json.encode(holder), 0)
        return True

    def take(self, *, wait_s: float, job: str = "", waiting: Callable[[], None] = lambda: None) -> float:
        """Wait for the turn; returns the seconds that it took. Blocks.

        waiting: called again and again meanwhile. Raises `TurnTimeout`, which names the holder, after `wait_s` seconds.
        """
        began = time.monotonic()
        while not self.try_take(job=job):
            if time.monotonic() - began > wait_s:
                self.leave_queue()
                raise TurnTimeout(timeout_message(self._file, wait_s), delay=5)
            waiting()
            time.sleep(POLL_S)
        return time.monotonic() - began

    def leave_queue(self) -> None:
        """Give up this process's place in the queue."""
        if self._next is not None:
            os.close(self._next)
            self._next = None

    def is_awaited(self) -> bool:
        """Return whether another process waits for the turn."""
        probe = _try_lock(self._next_file)
        if probe is None:
            return True
        os.close(probe)
        return False

    def release(self) -> None:
        """Let go of the turn. Does nothing without it."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    @property
    def _next_file(self) -> Path:
        return self._file.with_name(f"{self._file.name}.next")


def read_holder(file: Path) -> TurnHolder | None:
    """Return the holder of this file's turn; None when it is free."""
    probe = _try_lock(file) if file.exists() else None
    if probe is not None:
        os.close(probe)
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=TurnHolder)
    except (OSError, msgspec.DecodeError):
        return None  # it is changing hands


def timeout_message(file: Path, wait_s: float) -> str:
    """Return the message for a turn that did not come in time."""
    holder = read_holder(file)
    whose = f"{holder.who} (pid {holder.pid})" if holder is not None else "another process"
    at = f" for {holder.job}" if holder is not None and holder.job else ""
    return f"the turn at the shared device did not come in {wait_s:g} s: {whose} has it{at}"


def _try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a file, made if missing; None while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor

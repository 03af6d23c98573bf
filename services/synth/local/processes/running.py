"""Processes that outlive the command that started them: each known by its pid and the moment it was started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

_SAME_MOMENT_S = 2.0
_LOOK_S = 0.02


def start_of(pid: int) -> float | None:
    """When the process with this pid was started; None when there is none."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def is_alive(pid: int | None, started: float | None) -> bool:
    """Return whether the process with this pid and start time still runs."""
    if pid is None or started is None:
        return False
    since = start_of(pid)
    return since is not None and abs(since - started) < _SAME_MOMENT_S


def end_group(pid: int, sign: signal.Signals) -> None:
    """Signal a process of ours and its children: each leads its own group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, sign)


def end_leader(pid: int | None, started: float | None, *, grace: float) -> bool:
    """End a supervisor, which ends what it supervises. Returns whether it ran. grace: seconds until it is killed."""
    if pid is None or not is_alive(pid, started):
        return False
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, sign)
        if _wait_gone([(pid, started)], grace):
            break
    return True


def end_groups(processes: Iterable[tuple[int | None, float | None]], *, grace: float) -> None:
    """End processes without a supervisor, with their children. grace: seconds until they are killed."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        processes = [(pid, started) for pid, started in processes if is_alive(pid, started)]
        for pid, _ in processes:
            assert pid is not None
            end_group(pid, sign)
        _wait_gone(processes, grace)


def _wait_gone(processes: Iterable[tuple[int | None, float | None]], timeout: float) -> bool:
    """Wait until none of the processes runs; return False if the timeout passes first."""
    deadline = time.monotonic() + timeout
    while any(is_alive(pid, started) for pid, started in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True

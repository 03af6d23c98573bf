"""Processes that outlive the command that started them: each known by its pid and the moment it was started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

_SAME_MOMENT_S = 2.0


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

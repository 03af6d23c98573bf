"""The processes below this one: how many, how much memory they hold, how much they have written, and their end."""

from __future__ import annotations

import os
import signal
import time

_WAIT_ALL = 0x40000000
_SMALLEST_FILE = 4096
_ROUND_S = 0.002


def find_descendants() -> tuple[tuple[int, ...], int]:
    """Return the pids of all descendants, and the number of their threads. A zombie counts until it is reaped."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program stands in parentheses, and may contain any character.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append((int(name), int(fields[17])))
    pids: list[int] = []
    tasks, waiting = 0, [os.getpid()]
    while waiting:
        for pid, threads in children.get(waiting.pop(), ()):
            pids.append(pid)
            waiting.append(pid)
            tasks += threads
    return tuple(pids), tasks


def resident_bytes(pids: tuple[int, ...], *, limit: int) -> int:
    """Return the bytes of memory that these processes hold together. If the sum is over `limit`, pages that forks share
    count once, if the kernel reports them; otherwise once in each process."""
    total = sum(_fields(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:")) for pid in pids)
    if total <= limit:
        return total
    return sum(
        _fields(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))
        or _fields(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:"))
        for pid in pids
    )


def _fields(path: str, names: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(names))
    except OSError:  # it has ended, or forbids it
        return 0


def used_bytes(folder: str, *, limit: int) -> int:
    """Return the bytes of disk below a folder, counted until they exceed `limit`; an entry counts as at least 4 KiB."""
    total, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    try:
                        total += max(entry.stat(follow_symlinks=False).st_blocks * 512, _SMALLEST_FILE)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                    except FileNotFoundError:
                        continue
                    if total > limit:
                        return total
        except FileNotFoundError:
            continue
        except OSError:
            # Its path is too long for the kernel, or may not be read: nothing that could be measured.
            return limit + 1
    return total


def reap(codes: dict[int, int]) -> bool:
    """Take the exit codes of the children that have ended into `codes`. Returns False if no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | _WAIT_ALL)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        codes[pid] = os.waitstatus_to_exitcode(status)


def end_descendants(codes: dict[int, int], *, seconds: float) -> bool:
    """Kill every process below this one, and return when all are gone, or after `seconds`: whether they are.

    This process is their subreaper: one whose parent has ended is its child. Their forks must be refused by now.
    """
    deadline = time.monotonic() + seconds
    while True:
        for pid in find_descendants()[0]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not reap(codes):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_ROUND_S)

"""Keep tokenised files beyond a job: one folder per file, shared by the processes of a machine.

Two OS locks guard a folder, and are released if their process ends: `use` is shared by its readers and exclusive for
its removal; `write` is exclusive for making or checking its chunks. Invariants: a folder in use is never removed; a
chunk is made by one process at a time; the folders that were used longest ago are removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_USE, _WRITE = "use", "write"
_POLL_SECONDS = 0.25
#: Begins the name of a folder that is being removed.
_GONE = ".gone-"


@dataclass(frozen=True)
class TokenCache:
    """A cache of tokenised files. folder: of all of them. max_bytes: the size limit; folders in use may exceed it.

    processes: how many tokenise at the same time. chunk_bytes: of the source per chunk, rounded up to the next end of a
    line. waiting: called repeatedly while another process writes the chunks that this one needs.
    """

    folder: Path
    max_bytes: int
    processes: int
    chunk_bytes: int = 16 << 20
    waiting: Callable[[], None] = lambda: None

    def use(self, key: str) -> FolderInUse:
        """Return the folder of this key, in use from now on. Makes it if it does not exist."""
        while True:
            path = self.folder / key
            path.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path / _USE, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # removed between the two calls
            fcntl.flock(lock, fcntl.LOCK_SH)  # who removes a folder holds it for one rename
            if _is_at(lock, path / _USE):
                os.utime(path / _USE)
                return FolderInUse(path, lock)
            os.close(lock)

    def evict(self) -> None:
        """Remove the unused folders that were used longest ago, until the rest takes at most `max_bytes`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{_GONE}*"):
            shutil.rmtree(left, ignore_errors=True)  # of who died while it removed it
        sizes = {path: _size(path) for path in self.folder.iterdir() if path.is_dir()}
        total = sum(sizes.values())
        for path in sorted(sizes, key=_last_use):
            if total <= self.max_bytes:
                return
            if _remove(path):
                log.info("removed %d MB of tokens that were used longest ago", sizes[path] // 1_000_000)
                total -= sizes[path]
        if total > self.max_bytes:
            log.warning(
                "the tokens in use take %d MB, beyond the %d MB of SYNTH_TOKEN_CACHE_BYTES",
                *(total // 1_000_000, self.max_bytes // 1_000_000),
            )


class FolderInUse:
    """The folder of a tokenised file: it is not removed before this is closed, or its process ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextlib.contextmanager
    def writing(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Be the only one that writes here. waiting: called again and again while another process does."""
        lock = os.open(self.path / _WRITE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while not _try_lock(lock):
                waiting()
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(lock: int, path: Path) -> bool:
    """Return whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> bool:
    """Remove a folder that is not in use; False for one that is."""
    try:
        lock = os.open(path / _USE, os.O_RDWR)
    except FileNotFoundError:
        return False  # being made, or removed by another process
    try:
        if not _try_lock(lock) or not _is_at(lock, path / _USE):
            return False
        removed = path.with_name(f"{_GONE}{path.name}.{os.getpid()}")
        path.rename(removed)
    finally:
        os.close(lock)
    shutil.rmtree(removed, ignore_errors=True)
    return True


def _last_use(path: Path) -> tuple[float, str]:
    try:
        return (path / _USE).stat().st_mtime, path.name
    except FileNotFoundError:
        return 0.0, path.name


def _size(path: Path) -> int:
    total = 0
    # Files come and go while another process writes, and the folder itself may be removed.
    with contextlib.suppress(FileNotFoundError):
        for file in path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += file.stat().st_size
    return total

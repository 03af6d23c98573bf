"""Files and folders that are complete or absent, even if the process that writes them is killed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, body: bytes) -> None:
    """Write a file so that a crash leaves all of it or nothing: temporary file, fsync, rename."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(body)
    commit(partial, path)


@contextmanager
def atomic_folder(target: Path) -> Generator[Path]:
    """Give the block a folder to fill, which becomes `target` at its end; after an error it is removed.

    A target that another process made in that time is complete, and is kept.
    """
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        yield partial
        try:
            partial.rename(target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def commit(partial: Path, path: Path) -> None:
    """Give a file that was written under another name its own: fsync, rename, fsync of the folder."""
    sync_path(partial)
    partial.rename(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Call fsync for a file, or for a folder: a rename is only as durable as its folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

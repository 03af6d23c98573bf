"""Writes blobs of a local store: whole under another name, synced to the disk, and then in their place."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from synth.errors import Transient

_FULL_DISK_DELAY_S = 15.0
#: The folder of incomplete files, in the first folder of a key: a rename cannot cross a mount.
INCOMING = ".incoming"
#: Tries of one rename; each but the last met a deletion between two system calls.
_RENAMES = 100


def write_bytes(root: Path, key: str, body: bytes) -> None:
    """Write a blob whole. Raises `Transient` if the disk has no room."""
    with _full_disk_is_transient():
        temporary = _temporary(root, key)
        with _removed_on_failure(temporary):
            temporary.write_bytes(body)
            _take(root, key, temporary, move=True)


def take_file(root: Path, key: str, path: Path, *, move: bool) -> None:
    """Make a blob of a file's content. move: take the file itself. Raises `Transient` if the disk has no room."""
    with _full_disk_is_transient():
        _take(root, key, path, move=move)


def remove_empty_folders(root: Path, key: str) -> None:
    """Remove the folders of a blob that is gone, up to the first that holds anything; a key's first folder stays."""
    for folder in (root / key).parents:
        if root in (folder, folder.parent):
            return
        try:
            folder.rmdir()
        except OSError:
            return


def _temporary(root: Path, key: str) -> Path:
    folder = root / key.rpartition("/")[0].partition("/")[0] / INCOMING
    folder.mkdir(parents=True, exist_ok=True)
    return folder / uuid.uuid4().hex


def _take(root: Path, key: str, path: Path, *, move: bool) -> None:
    target = root / key
    new_folder = None
    if move:
        _sync(path)
        try:
            new_folder = _put_in_place(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    if new_folder is None:  # the file must stay, or is on another file system
        copy = _temporary(root, key)
        with _removed_on_failure(copy):
            shutil.copy(path, copy)
            _sync(copy)
            new_folder = _put_in_place(copy, target)
        if move:
            path.unlink()
    # A rename is as durable as its folder, and a new folder as its own.
    above = target.parent.relative_to(root).parents if new_folder else ()
    for folder in (target.parent, *(root / parent for parent in above)):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _full_disk_is_transient() -> Generator[None]:
    """Raise `Transient` if the disk has no room: the writer waits, and goes on once there is some."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Transient(f"the blob store's disk is full ({error.strerror})", delay=_FULL_DISK_DELAY_S) from error


@contextmanager
def _removed_on_failure(path: Path) -> Generator[None]:
    try:
        yield
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _put_in_place(path: Path, target: Path) -> bool:
    """Rename a file into a folder, which is made first, and made again if a deletion has just removed it.

    Returns whether the folder is new.
    """
    for tries_left in reversed(range(_RENAMES)):
        new_folder = not target.parent.exists()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        except FileNotFoundError:
            if not tries_left or not path.exists():
                raise
        else:
            return new_folder
    raise AssertionError("unreachable")

"""The folder of one run: its files, and its removal in any state that the command leaves it in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

_OWN = 0o700


@contextmanager
def own_folder(files: Mapping[str, bytes]) -> Generator[Path]:
    """Make a folder with these files, by their paths in it, and remove it afterwards. Raises `ValueError` for a path
    that leads out of it. Blocks during disk access."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="sandbox-")))
    try:
        for name, body in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"the path {name!r} leads out of the folder")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder of any depth, with any names and permissions. Nothing may use it any more.

    A folder within it is moved up before it is opened, so that no path becomes too long for the kernel.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        numbers = 0
        while folders := _remove_files(root):
            for name in folders:
                os.chmod(name, _OWN, dir_fd=root)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
                try:
                    for deeper in _remove_files(inner):
                        with suppress(OSError):
                            # A folder is moved only if it can be written: its `..` changes.
                            os.chmod(deeper, _OWN, dir_fd=inner)
                        os.rename(deeper, f"{_TAKEN}{numbers}", src_dir_fd=inner, dst_dir_fd=root)
                        numbers += 1
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    folder.rmdir()


#: Longer than a name that a command could have used by chance, and unknown to it.
_TAKEN = f"removed-{os.urandom(8).hex()}-"


def _remove_files(folder: int) -> list[str]:
    """Remove every file of a folder; the names of the folders in it."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders

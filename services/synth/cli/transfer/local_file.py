"""Files that the command line names, which may be pipes: a pipe can be read once, and datasets are read twice."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from synth.cli.tui import output
from synth.console.errors import UsageProblem
from synth.datasets.parquet import MAGIC

_PIECE = 1 << 20
#: The part of the disk that copies leave free.
_KEPT_FREE = 1 / 20


def local_file(path: Path, *, expected: str = "a JSONL or Parquet file, a folder, or a pipe") -> Path:
    """Return a file or folder that can be read again.

    A pipe, such as `-`, /dev/stdin, `<(…)` or a FIFO, is copied to a temporary file once; the copy is deleted when the
    program ends. expected: for the error's text. Raises `UsageProblem` for anything else, and for a missing file.
    """
    if is_regular(path, expected=expected):
        return path
    return _copy_of(str(path), expected)


def is_regular(path: Path, *, expected: str) -> bool:
    """Return whether a path is a file or folder, and not a pipe. Raises `UsageProblem` for anything else."""
    if str(path) == "-":
        return False
    where = str(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        fix = "" if path.is_absolute() else "a path is relative to the folder in which the command runs"
        raise UsageProblem("there is no such file", expected=expected, fix=fix, where=where) from None
    except OSError as error:
        raise UsageProblem(f"cannot be read ({error.strerror})", expected=expected, where=where) from error
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return True
    # A socket or a terminal is read like a pipe when it is standard input, as /dev/stdin can be.
    if stat.S_ISFIFO(mode) or (_is_stdin(path) and (stat.S_ISSOCK(mode) or sys.stdin.isatty())):
        return False
    kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise UsageProblem(f"it is {kind}", expected=expected, where=where)


@contextmanager
def open_once(path: Path) -> Iterator[BinaryIO]:
    """Open a file or a pipe to be read once; `-` and /dev/stdin are standard input."""
    if _is_stdin(path):
        yield sys.stdin.buffer
    else:
        try:
            opened = path.open("rb")
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise UsageProblem(what, expected="a file that you may read", where=str(path)) from error
        with opened:
            yield opened


def _is_stdin(path: Path) -> bool:
    if str(path) == "-":
        return True
    status = path.stat()
    try:
        return not stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(0))
    except OSError:  # standard input is closed
        return False


@functools.cache
def _copy_of(name: str, expected: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="synth-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path, size = Path(name), 0
    with open_once(path) as pipe, output.status(f"reading {name}") as status:
        first = pipe.read(len(MAGIC))
        plain = "stdin" if name == "-" else path.name
        suffix = "" if path.suffix else ".parquet" if first == MAGIC else ".jsonl"
        copy = folder / f"{plain}{suffix}"
        with copy.open("wb") as out:
            piece = first
            while piece:
                disk = shutil.disk_usage(folder)
                if disk.free - len(piece) < disk.total * _KEPT_FREE:
                    raise UsageProblem(
                        f"{output.size(size)} of it fill {folder.parent}, and there is more",
                        expected=expected,
                        fix="set TMPDIR to a folder with more room, or write it to a file first",
                        where=name,
                    )
                out.write(piece)
                size += len(piece)
                status(f"reading {name}: {output.size(size)}")
                piece = pipe.read(_PIECE)
    return copy

"""The files of what runs on this machine: state that is replaced whole, locks, logs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from synth.console.errors import CliError
from synth.console.plain_text import printable
from synth.runtime.lines import split_lines

_TAIL_LINES = 15
_State = TypeVar("_State", bound=msgspec.Struct)


def write_private(path: Path, body: bytes) -> None:
    """Replace a file that only its owner may read; a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(body)
    part.replace(path)


def write_state(path: Path, state: msgspec.Struct) -> None:
    """Replace the file of a state."""
    write_private(path, msgspec.json.format(msgspec.json.encode(state), indent=2))


def read_state(path: Path, kind: type[_State], *, what: str, fix: str) -> _State | None:
    """Read a state; None if there is no file. Raises `CliError` for a damaged file. what: the owner of the state."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CliError(f"not the state of a {what} ({error})", fix=fix, where=str(path)) from error


@contextmanager
def locked(path: Path, busy: Callable[[], CliError]) -> Iterator[None]:
    """Hold a lock, which the kernel frees when this process ends. busy: makes the error if another one holds it."""
    # Datasets, models and rollouts of every organisation are below it.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy() from error
        yield


def rotate_log(log: Path) -> None:
    """Begin a new log; the last run's stays beside it as `.log.1`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))


def failure(what: str, log: Path) -> CliError:
    """Return the error of a process, with the end of its log."""
    lines = split_lines(log.read_text(errors="replace"))[-_TAIL_LINES:] if log.is_file() else []
    tail = "\n    ".join(lines) or "(nothing)"
    return CliError(what, fix=f"its log ends with:\n    {tail}", where=str(log))


def start_detached(module: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a module as a process that outlives this one."""
    rotate_log(log)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def report(line: str) -> None:
    """Write a line to the log of a detached process."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(line)}\n")
    sys.stderr.flush()

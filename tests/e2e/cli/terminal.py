"""What a person sees: a command on a pseudo-terminal of some width, and the screen that its output leaves."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cli.conftest import OURS

_CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
#: Variables that would decide how things look.
_LOOKS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "PY_COLORS", "GITHUB_ACTIONS")
#: The variables that a command gets by itself.
NO_MORE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Shown:
    """What a command wrote to its terminal, which is its stdout and stderr, and how it ended."""

    code: int
    raw: str

    @property
    def lines(self) -> list[str]:
        """The lines that stand there in the end: without styles, without what was drawn over."""
        return screen(self.raw)

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def on_terminal(
    columns: int,
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] = NO_MORE,
    says: bytes = b"",
    timeout: float = 240,
) -> Shown:
    """Run a command on a terminal of so many columns; nothing is typed there. env: beside the usual variables.

    says: what the terminal answers to a command that asks for its graphics. Without it, it is not the command's input.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    os.write(ours, says)
    stdin = theirs if says else subprocess.DEVNULL
    ended = subprocess.Popen(command, cwd=cwd, env=_environment(env), stdin=stdin, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    # A terminal whose last program has gone reads as an error.
    with suppress(OSError):
        while piece := os.read(ours, 65536):
            said += piece
    os.close(ours)
    return Shown(ended.wait(timeout), said.decode())


def synthctl(columns: int, *arguments: str, cwd: Path) -> Shown:
    """`synthctl` on a terminal of so many columns."""
    return on_terminal(columns, [sys.executable, "-m", "synth.cli", *arguments], cwd=cwd)


def piped(command: Sequence[str], *, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a command whose output a program reads."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=_environment(NO_MORE),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in (*OURS, *_LOOKS)}
    return kept | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | dict(own)


def screen(raw: str) -> list[str]:
    """The lines that a terminal without an end shows for what was written: cursor movements are done, styles dropped.

    Lines are not wrapped: one that is too long for the terminal stays as long as it is.
    """
    lines, row, column, at = [""], 0, 0, 0
    while at < len(raw):
        code, char = _CODE.match(raw, at), raw[at]
        if code:
            at = code.end()
            match code[2]:
                case "A":
                    row = max(0, row - int(code[1] or 1))
                case "K":
                    lines[row] = "" if code[1] == "2" else lines[row][:column]
                case _:
                    pass
            continue
        at += 1
        if char == "\r":
            column = 0
        elif char == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]

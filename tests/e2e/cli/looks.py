"""Many commands of `synthctl`, looked at on terminals of two widths, without colours, and through a pipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.cli.app import build
from tests.e2e.cli.in_turn import BEGIN, END
from tests.e2e.cli.terminal import Shown, on_terminal, piped

_IN_TURN = str(Path(__file__).with_name("in_turn.py"))
_ONE = re.compile(rf"{BEGIN}\d+\r?\n(.*?){END}(\d+)", re.DOTALL)
#: A command of `synthctl`, by the words that call it.
Words = tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """Where commands are looked at. columns: of the terminal; None for a pipe."""

    columns: int | None
    colours: bool = True

    def at(self, commands: Sequence[Sequence[str]], folder: Path, *, timeout: float = 600) -> list[Shown]:
        """What each of the commands shows there, in their order; of a pipe, its stdout."""
        file = folder / "commands.json"
        file.write_text(json.dumps(commands))
        program = [sys.executable, _IN_TURN, str(file)]
        if self.columns is None:
            written = piped(program, cwd=folder, timeout=timeout).stdout
        else:
            env = {} if self.colours else {"NO_COLOR": "1"}
            written = on_terminal(self.columns, program, cwd=folder, env=env, timeout=timeout).raw
        found = [Shown(int(code), text) for text, code in _ONE.findall(written)]
        assert len(found) == len(commands), written[-2000:]
        return found


LOOKS = {
    "80": Look(80),
    "44": Look(44),
    "NO_COLOR": Look(80, colours=False),
    "piped": Look(None),
}


def every_command() -> dict[Words, Any]:
    """Every command of the program, the groups among them, and the program itself."""
    return dict(_below(build(), ()))


def _below(command: Any, words: Words) -> Iterator[tuple[Words, Any]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _below(below, (*words, name))

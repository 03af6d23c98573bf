"""Runs `synthctl` once for each list of arguments in a JSON file, in one process: Python starts once for all of them.

Before each stands a line of `BEGIN` and its number, behind it one of `END` and its exit code.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from synth.cli import app

BEGIN, END = "\x1e", "\x1f"


def _mark(text: str) -> None:
    sys.stderr.flush()
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(arguments: list[list[str]]) -> None:
    """Run them all, as the program itself runs."""
    # To build the program takes ten times as long as what a command shows, and it is the same each time.
    app.build = functools.cache(app.build)
    for number, words in enumerate(arguments):
        _mark(f"{BEGIN}{number}")
        sys.argv = ["synthctl", *words]
        code: object = 0
        try:
            app.main()
        except SystemExit as end:
            code = end.code or 0
        _mark(f"{END}{code}")


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))

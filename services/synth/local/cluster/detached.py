"""The supervisor as a process of its own: `python -m synth.local.cluster.detached DATA SERVICE…`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from synth.console.plain_text import printable
from synth.errors import SynthError
from synth.local.cluster.plan import make_plan
from synth.local.cluster.state import StateFile
from synth.local.cluster.supervisor import Supervisor


def main() -> int:
    """Run the cluster whose state was prepared in DATA, until SIGTERM; what happens goes to stderr."""
    data, services = Path(sys.argv[1]), tuple(sys.argv[2:])
    file = StateFile(data)
    try:
        with file.locked():
            state = file.read()
            assert state is not None
            asyncio.run(Supervisor(make_plan(state, data, services), state, file, _report).run())
    except SynthError as error:
        _report(f"error: {error}")
        return 1
    return 0


def _report(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(line)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

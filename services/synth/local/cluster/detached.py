"""The supervisor as a process of its own: `python -m synth.local.cluster.detached DATA SERVICE…`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from synth.errors import SynthError
from synth.local.cluster.plan import make_plan
from synth.local.cluster.state import StateFile
from synth.local.cluster.supervisor import Supervisor
from synth.local.processes.files import report


def main() -> int:
    """Run the cluster whose state was prepared in DATA, until SIGTERM; what happens goes to stderr."""
    data, services = Path(sys.argv[1]), tuple(sys.argv[2:])
    file = StateFile(data)
    try:
        with file.locked():
            state = file.read()
            assert state is not None
            asyncio.run(Supervisor(make_plan(state, data, services), state, file, report).run())
    except SynthError as error:
        report(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

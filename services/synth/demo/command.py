"""The command that serves a task app: `python -m synth.demo.math --port 8001`."""

from __future__ import annotations

import argparse
import sys

from synth.errors import UserError
from synth.taskapp.sdk import TaskApp, serve


def run(app: TaskApp, package: str) -> int:
    """Serve the app of a package; returns the exit code."""
    parser = argparse.ArgumentParser(prog=package, description=f"Serve the {app.id} task app.")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    try:
        serve(app, port=options.port, host=options.host)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0

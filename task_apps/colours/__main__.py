"""`python -m task_apps.colours --port 8001`"""

from __future__ import annotations

import sys

from synth.demo.command import run
from task_apps.colours.app import colours

if __name__ == "__main__":
    sys.exit(run(colours, "task_apps.colours"))

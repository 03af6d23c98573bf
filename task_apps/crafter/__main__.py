"""`python -m task_apps.crafter --port 8001`"""

from __future__ import annotations

import sys

from synth.demo.command import run
from task_apps.crafter.app import crafter

if __name__ == "__main__":
    sys.exit(run(crafter, "task_apps.crafter"))

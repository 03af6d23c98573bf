"""`python -m task_apps.colours --port 8001`"""

from __future__ import annotations

import sys

from task_apps.colours.app import colours
from task_apps.command import run

if __name__ == "__main__":
    sys.exit(run(colours, "task_apps.colours"))

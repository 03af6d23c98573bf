"""`python -m task_apps.math --port 8001`"""

from __future__ import annotations

import sys

from task_apps.command import run
from task_apps.math.app import math

if __name__ == "__main__":
    sys.exit(run(math, "task_apps.math"))

"""`python -m synth.demo.math --port 8001`"""

from __future__ import annotations

import sys

from synth.demo.command import run
from synth.demo.math.app import math

if __name__ == "__main__":
    sys.exit(run(math, "synth.demo.math"))

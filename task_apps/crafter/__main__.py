"""`python -m task_apps.crafter --port 8001`"""

from __future__ import annotations

import argparse
import sys

from synth.errors import UserError
from synth.taskapp.sdk import serve
from task_apps.crafter.app import crafter


def main() -> int:
    parser = argparse.ArgumentParser(prog="task_apps.crafter", description="Serve the Crafter task app.")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    try:
        serve(crafter, port=options.port, host=options.host)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

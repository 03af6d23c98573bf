"""`python -m task_apps.colours --port 8001`"""

from __future__ import annotations

import argparse
import sys

from synth.errors import UserError
from synth.taskapp.sdk import serve
from task_apps.colours.app import colours


def main() -> int:
    parser = argparse.ArgumentParser(prog="task_apps.colours", description="Serve the Colours task app.")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    try:
        serve(colours, port=options.port, host=options.host)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

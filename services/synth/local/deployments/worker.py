"""The process of a deployed task app: `python -m synth.local.deployments.worker [--until-stdin-ends] APP SOCKET…`.

The supervisor hands the sockets on as file descriptors: the app's own, which outlives this process, and one at which
only the supervisor requests this process's health.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading

from synth.console.errors import CliError
from synth.console.plain_text import printable
from synth.errors import SynthError, UserError
from synth.local.task_apps.loading import load_task_app
from synth.taskapp.server import make_server

#: The option that ends the process together with its parent, which holds the other end of its stdin.
UNTIL_STDIN_ENDS = "--until-stdin-ends"


class _SafeLines(logging.Formatter):
    """Prints text of models and callers without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def main() -> int:
    """Serve until SIGTERM. Exit 2 for an app that cannot be loaded; the log has the reason."""
    arguments = sys.argv[1:]
    if arguments[0] == UNTIL_STDIN_ENDS:
        arguments.pop(0)
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    named, *descriptors = arguments
    handler = logging.StreamHandler()
    handler.setFormatter(_SafeLines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # httpx logs each URL, and the URL's cid is a credential.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    sockets = [socket.socket(fileno=int(descriptor)) for descriptor in descriptors]
    try:
        server = make_server(load_task_app(named).asgi())
    except (CliError, UserError) as error:
        sys.stderr.write(f"{printable(_text(error))}\n")
        return 2
    server.run(sockets=sockets)
    return 0


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _text(error: SynthError) -> str:
    problems = error.problems if isinstance(error, CliError | UserError) else []
    return "\n".join(problem.text() for problem in problems)


if __name__ == "__main__":
    sys.exit(main())

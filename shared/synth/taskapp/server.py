"""Serving a task app on a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from synth.errors import Problem, UserError

#: Seconds that rollouts under way have to end after Ctrl-C.
GRACE_S = 10
_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Open a socket and listen on it; a `port` of 0 is a free one. Raises UserError when the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # The port listens before its address is published, so that an early call waits instead of being refused.
        listener.listen(_BACKLOG)
    except OSError as taken:
        listener.close()
        raise UserError(
            Problem(
                what=f"cannot listen: {taken.strerror}",
                expected="a free port",
                fix="choose another with --port",
                where=f"{host}:{port}",
            )
        ) from taken
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Starlette, *, grace_s: int = GRACE_S) -> uvicorn.Server:
    """Return the server, not yet running. grace_s: seconds that running requests get when it stops."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=grace_s,
    )
    return uvicorn.Server(config)


@contextmanager
def serving(app: Starlette) -> Generator[str]:
    """Serve the app in a thread, on a free port of this machine, while the block runs; yields its address."""
    server = make_server(app, grace_s=1)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(5)

"""`synthctl serve --reload`: the process restarts when the app's files change, and keeps its socket.

The socket is handed on to the next life of the process, so the port stays, and a call that comes in between waits in
the socket's queue. A file that does not import is shown, and calls wait for the save that mends it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from watchfiles import PythonFilter, watch

from synth.cli.tui import output
from synth.console.errors import UsageProblem
from synth.errors import UserError
from synth.local.task_apps.loading import load_task_app, locate
from synth.taskapp.faults import is_own
from synth.taskapp.sdk import TaskApp
from synth.taskapp.server import listen, make_server, url_of

#: The socket's file descriptor and the app's place, for the next life of the process.
_HANDED_ON = "SYNTHCTL_LISTENER"
#: The interval of checks whether the app has imported a file of another folder since.
_LOOK_MS = 2000
#: Seconds by which the time of a save may be early: file systems stamp by a clock that ticks. A start takes longer, so
#: no save counts twice.
_TICK_S = 0.05
#: Seconds for answers under way: a rollout takes longer, and is to be played by the new code.
_GRACE_S = 1


def serve_and_reload(
    named: str, *, host: str, port: int, ready: Callable[[TaskApp, str], None], dead: Callable[[], None]
) -> None:
    """Serve the app until SIGINT or SIGTERM, always as its files are now.

    ready: called at the first start, when it succeeds. dead: called after an error was shown.
    """
    begun, handed_on = time.time(), _handed_on()
    # An id is looked up once: a later save may be of a file that cannot be read for a while.
    named = handed_on[1] if handed_on else locate(named)
    listener = handed_on[0] if handed_on else listen(host, port)
    try:
        app = load_task_app(named)
        server = make_server(app.asgi(), grace_s=_GRACE_S)
    except (UsageProblem, UserError) as error:
        output.show_problems(error.problems)
        dead()
        for _ in _changes(named, begun, threading.Event()):
            _begin_anew(listener, named)
        return
    if handed_on:
        output.hint(f"{app.id} is served at {url_of(listener)}")
    else:
        ready(app, url_of(listener))
    changed, stop = threading.Event(), threading.Event()

    def look() -> None:
        for _ in _changes(named, begun, stop):
            changed.set()
            server.should_exit = True
            return

    watcher = threading.Thread(target=look, name="reload", daemon=True)
    watcher.start()
    # Rollouts are cut off on purpose, which is no error; the server closes the socket that it gets.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server.run(sockets=[listener.dup()])
    stop.set()
    watcher.join()
    if changed.is_set():
        _begin_anew(listener, named)


def _changes(named: str, begun: float, stop: threading.Event) -> Iterator[None]:
    """Yield each time that Python files of the app, or of its imports, have changed, until `stop`.

    begun: when the process began to read them, in unix seconds.
    """
    while not stop.is_set():
        folders = own_folders(named)
        for seen in watch(
            *folders,
            watch_filter=PythonFilter(),
            stop_event=stop,
            recursive=False,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            raise_interrupt=True,
        ):
            # A file that was saved after it was read and before it was watched is found by its time.
            changed = {Path(path) for _, path in seen} | _saved_since(begun, folders)
            if changed:
                output.hint(f"{', '.join(sorted({file.name for file in changed}))} changed: starting anew")
                yield
            elif own_folders(named) != folders:
                break


def _saved_since(begun: float, folders: set[Path]) -> set[Path]:
    now = time.time()
    return {file for folder in folders for file in folder.glob("*.py") if begun - _TICK_S < _saved_at(file) <= now}


def _saved_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def own_folders(named: str) -> set[Path]:
    """Return the folders of the app's own modules: of its imports, and of its own file."""
    source = named.partition(":")[0]
    folders = {Path(source).resolve().parent} if source.endswith(".py") else {Path.cwd()}
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_own(file):
            folders.add(Path(file).resolve().parent)
    return {folder for folder in folders if folder.is_dir()}


def _handed_on() -> tuple[socket.socket, str] | None:
    handed_on = os.environ.pop(_HANDED_ON, None)
    if handed_on is None:
        return None
    descriptor, _, named = handed_on.partition(" ")
    return socket.socket(fileno=int(descriptor)), named


def _begin_anew(listener: socket.socket, named: str) -> None:
    """Replace this process by a new one of the same command, which takes the socket over."""
    listener.set_inheritable(True)
    os.environ[_HANDED_ON] = f"{listener.fileno()} {named}"
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os.execv(sys.executable, [sys.executable, "-m", "synth.cli", *sys.argv[1:]])

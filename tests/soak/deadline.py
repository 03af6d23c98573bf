"""A run that hangs ends, whatever hangs: with the stacks of all threads, and without its processes."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

#: What may be left of a run that has been told to end: its processes are killed, its servers closed.
CLEANING_S = 120.0


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """End this process with code 1, and all that it has started, where the block takes longer.

    It is a thread's doing: a loop that is blocked ends as well.
    """
    over = threading.Event()

    def watch() -> None:
        if not over.wait(seconds):
            _end(seconds)

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _end(seconds: float) -> None:
    sys.stdout.write(f"not over after {seconds:.0f} s: given up\n")
    sys.stdout.flush()
    faulthandler.dump_traceback(all_threads=True)
    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=CLEANING_S)
    os._exit(1)

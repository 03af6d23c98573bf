"""How the process of a program ends."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run_and_end(main: Callable[[], None]) -> NoReturn:
    """Run a program, and end its process with the code that it exits with, without taking the interpreter down.

    The blob store's library has threads that nobody can end. One that is handing over a result while the interpreter is
    taken down aborts the process, after all its work was done: the code is then that of SIGABRT
    (https://github.com/PyO3/pyo3-async-runtimes/issues/40). What was registered with `atexit` is called all the same.
    What the program raises, other than `SystemExit`, is raised.
    """
    code: object = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)

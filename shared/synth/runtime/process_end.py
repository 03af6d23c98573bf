"""Ends the process of a program."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run_and_end(main: Callable[[], None]) -> NoReturn:
    """Run a program, and end its process with the code that it exits with, without taking the interpreter down.

    The blob store's library has threads that nobody can end. A thread that hands over a result while the interpreter is
    taken down aborts the process, after all its work was done: it then ends with the code of SIGABRT
    (https://github.com/PyO3/pyo3-async-runtimes/issues/40). Functions that were registered with `atexit` are called all
    the same. Exceptions of the program, other than `SystemExit`, are raised.
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

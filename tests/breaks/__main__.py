"""Break one guarantee at a time in a copy of the tree, and check that its tests fail: `python -m tests.breaks`.

It prints a row for each break, and exits with 1 if a break was missed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from tests.breaks.sources import ROOT, SOURCES, has_test, place_of, read_sources
from tests.breaks.table import BREAKS, Break

_TIMEOUT_S = 240
#: Packages that most of the tests import, which the forks then have.
_PRELOADED = ("fastapi", "hypothesis", "httpx", "numpy", "torch", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__)
    parser.add_argument("only", nargs="*", help="words of the names of the breaks to run; all of them by default")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to copy and break")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a break first")
    arguments = parser.parse_args()
    tree: Path = arguments.tree.resolve()
    chosen = [b for b in BREAKS if not arguments.only or any(word in b.name for word in arguments.only)]
    for package in _PRELOADED:
        importlib.import_module(package)
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        copy = _copy(tree, Path(folder) / "tree")
        if not arguments.trust:
            _require_green(copy, chosen)
        missed = [b.name for b in chosen if not _is_caught(copy, b)]
    Console().print(f"{len(chosen) - len(missed)} of {len(chosen)} breaks caught")
    sys.exit(1 if missed else 0)


def _copy(tree: Path, target: Path) -> Path:
    """Copy the files that git knows or would add, and nothing that was built."""
    listed = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (tree / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, target / name)
    return target


def _require_green(copy: Path, chosen: list[Break]) -> None:
    """End with an error if the tests fail without any break: then a red test proves nothing."""
    code, output = _pytest(copy, sorted({test for b in chosen for test in b.tests if has_test(copy, test)}))
    if code:
        sys.exit(f"{output}\nthe tests fail without a break; expected green tests; repair them first")


def _is_caught(copy: Path, b: Break) -> bool:
    tests = [test for test in b.tests if has_test(copy, test)]
    modules = read_sources(copy)
    path = place_of(b.text, modules)
    begun = time.monotonic()
    path.write_text(modules[path].replace(b.text, b.becomes))
    code, output = _pytest(copy, tests) if tests else (0, "")
    path.write_text(modules[path])
    # A module that no longer imports proves nothing.
    if code not in (0, 1):
        sys.exit(f"{b.name}: pytest ended with {code}:\n{output}")
    verdict, where = "caught" if code else "MISSED", path.relative_to(copy)
    Console(width=200).print(f"{verdict} {time.monotonic() - begun:4.0f} s  {b.name:60} {where}", highlight=False)
    return bool(code)


def _pytest(copy: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests in a fork of this process, until one fails. Returns pytest's exit code and the end of its output."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if not pid:
            _become_pytest(copy, tests, output.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        return code, output.read()[-3000:]


def _become_pytest(copy: Path, tests: list[str], output: int) -> NoReturn:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    sources = [str(copy / source) for source in SOURCES]
    os.environ |= {"PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    sys.path[:0] = [str(copy), *sources]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "synth")]:
        del sys.modules[name]
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TIMEOUT_S}", *tests]))


if __name__ == "__main__":
    main()

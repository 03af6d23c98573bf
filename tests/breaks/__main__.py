"""Break one guarantee at a time in a copy of the tree, and check that its tests fail: `python -m tests.breaks`.

It prints a row for each break, and exits with 1 if a break was missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.breaks.sources import ROOT, SOURCES, place_of, read_sources
from tests.breaks.table import BREAKS, Break

_TIMEOUT_S = 240


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__)
    parser.add_argument("only", nargs="*", help="words of the names of the breaks to run; all of them by default")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to copy and break")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a break first")
    arguments = parser.parse_args()
    tree: Path = arguments.tree.resolve()
    chosen = [b for b in BREAKS if not arguments.only or any(word in b.name for word in arguments.only)]
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
    tests = sorted({test for b in chosen for test in b.tests if (copy / test).exists()})
    result = _pytest(copy, tests, timeout_s=_TIMEOUT_S * len(tests))
    if result.returncode:
        sys.exit(f"{result.stdout[-3000:]}\nthe tests fail without a break; expected green tests; repair them first")


def _is_caught(copy: Path, b: Break) -> bool:
    tests = [test for test in b.tests if (copy / test).exists()]
    modules = read_sources(copy)
    path = place_of(b.text, modules)
    begun = time.monotonic()
    path.write_text(modules[path].replace(b.text, b.becomes))
    try:
        result = _pytest(copy, tests) if tests else None
    except subprocess.TimeoutExpired:
        result = None
    finally:
        path.write_text(modules[path])
    caught = result is not None and result.returncode == 1
    # A module that no longer imports proves nothing.
    if result is not None and result.returncode not in (0, 1):
        sys.exit(f"{b.name}: pytest ended with {result.returncode}:\n{result.stdout[-3000:]}")
    where = path.relative_to(copy)
    verdict = "caught" if caught else "MISSED"
    Console(width=200).print(f"{verdict} {time.monotonic() - begun:4.0f} s  {b.name:60} {where}", highlight=False)
    return caught


def _pytest(copy: Path, tests: list[str], *, timeout_s: float = _TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    sources = os.pathsep.join(str(copy / source) for source in SOURCES)
    environment = os.environ | {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout_s)


if __name__ == "__main__":
    main()

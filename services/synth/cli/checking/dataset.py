"""A dataset on this machine, looked at line by line as the cluster looks at an uploaded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from synth.cli.transfer.upload import line_problems
from synth.datasets.check import FileCheck
from synth.errors import Problem
from synth.events import FileRejected

#: Bytes that are held at one time; a file of any size is read.
_PIECE = 1 << 20


@dataclass(frozen=True)
class DatasetReport:
    """What is wrong with the lines of a file. image_rows: how many rows show images, which were not fetched.

    pairs: whether they are preference pairs.
    """

    problems: list[Problem]
    image_rows: int
    pairs: bool


def check_dataset(path: Path, *, read: Callable[[int], None] = lambda n: None) -> DatasetReport:
    """Check every line of a file that is there. read: told how many bytes have been."""
    check = FileCheck()
    done = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            check.feed(piece)
            done += len(piece)
            read(done)
    verdict = check.finish()
    if isinstance(verdict, FileRejected):
        problems = line_problems(verdict.problems, verdict.bad_lines, str(path))
        return DatasetReport(problems, check.image_rows, check.pairs > 0)
    return DatasetReport([], check.image_rows, check.pairs > 0)

"""A dataset on this machine, looked at line by line as the cluster looks at an uploaded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from synth.chat.template_source import RenderOptions
from synth.cli.transfer.local_file import local_file
from synth.client.files import line_problems
from synth.datasets.check import FileCheck
from synth.datasets.parquet import ParquetUnreadable
from synth.datasets.render_check import RenderCheck
from synth.datasets.sources import read_pieces, source_files
from synth.errors import Problem, UserError
from synth.events import FileRejected


@dataclass(frozen=True)
class DatasetReport:
    """The problems of a file's lines. image_rows: the number of rows with images, which were not fetched.

    pairs: whether they are preference pairs. unanswered: whether they are prompts alone.
    """

    problems: list[Problem]
    image_rows: int
    pairs: bool
    unanswered: bool = False


def check_dataset(path: Path, *, read: Callable[[int], None] = lambda n: None) -> DatasetReport:
    """Check every line of a file, a folder or a pipe.

    read: called with the number of bytes that are read, of those on the disk. Raises `UserError` as `source_files`.
    """
    check, files = FileCheck(), source_files(local_file(path))
    try:
        _feed(check, files, read)
    except UserError as error:
        return DatasetReport(error.problems, 0, pairs=False)
    verdict = check.finish()
    if isinstance(verdict, FileRejected):
        problems = line_problems(verdict.problems, verdict.bad_lines, str(path))
        return DatasetReport(problems, check.image_rows, check.pairs > 0)
    return DatasetReport([], check.image_rows, check.pairs > 0, check.unanswered > 0)


def render_dataset(path: Path, options: RenderOptions, *, read: Callable[[int], None]) -> list[Problem]:
    """Render every row of a checked file or folder with a model's chat template. Returns the first bad lines."""
    check = RenderCheck(options, uploaded=True)
    _feed(check, source_files(local_file(path)), read)
    return [Problem(what=problem.reason, where=f"{path}:{problem.line} {problem.path}") for problem in check.finish()]


def _feed(check: FileCheck | RenderCheck, files: list[Path], read: Callable[[int], None]) -> None:
    """Read the files into a check. Raises `UserError` for a Parquet file that cannot be read."""
    before = 0
    for file in files:
        size, done = file.stat().st_size, 0
        try:
            for piece in read_pieces(file):
                check.feed(piece)
                done += len(piece)
                # A Parquet file is smaller than its lines.
                read(before + min(done, size))
        except ParquetUnreadable as error:
            raise UserError(Problem(what=str(error), where=str(file))) from error
        before += size

"""Uploading a dataset, and waiting until the cluster has checked it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from synth.api.schemas import File
from synth.cli.transfer.local_file import local_file
from synth.cli.tui import output
from synth.client import Client
from synth.console.errors import UsageProblem
from synth.datasets.parquet import ParquetUnreadable
from synth.datasets.sources import read_pieces, source_files, without_columns
from synth.errors import UserError


def upload_ready(client: Client, path: Path, *, timeout: float, drop: Sequence[str] = ()) -> File:
    """Upload a JSONL or Parquet file and wait until it is ready. Raises `UsageProblem` with the lines that are wrong.

    path: a folder of Hugging Face's datasets is uploaded as one JSONL of its train split; a pipe is copied first.
    timeout: seconds for the check, once the bytes are there. drop: columns that are left out: a copy without them, as
    JSONL, is then written to the folder for temporary files and uploaded.
    """
    check_readable(path)
    if path.is_dir() or drop:
        with tempfile.TemporaryDirectory(prefix="synth-") as folder:
            rows = _as_one_file(local_file(path), Path(folder), drop)
            return _upload_ready(client, rows, path, timeout=timeout)
    return _upload_ready(client, local_file(path), path, timeout=timeout)


def _as_one_file(named: Path, out: Path, drop: Sequence[str]) -> Path:
    files = source_files(named)
    if named.is_dir():
        left = sum(1 for f in named.rglob("*") if f.suffix == files[0].suffix) - len(files)
        more = f"; {left} of other splits are left out" if left else ""
        output.hint(f"{named}: {len(files)} files, {files[0].relative_to(named)} the first{more}")
    path = out / f"{named.resolve().stem if named.is_file() else named.resolve().name}.jsonl"
    dropped = dict.fromkeys(drop, 0)
    with path.open("wb") as lines, output.status(f"reading {named}") as status:
        for k, file in enumerate(files, start=1):
            status(f"reading {file.name} ({k} of {len(files)})")
            try:
                pieces = read_pieces(file)
                lines.writelines(without_columns(pieces, dropped) if drop else pieces)
            except ParquetUnreadable as error:
                raise UsageProblem(str(error), where=str(file)) from error
    if absent := [name for name, rows in dropped.items() if not rows]:
        raise UsageProblem(f"no row has a column {', '.join(map(repr, absent))}", where=f"--drop for {named}")
    return path


def _upload_ready(client: Client, path: Path, named: Path, *, timeout: float) -> File:
    """Upload a file and wait until it is ready. named: its path as the user wrote it."""
    total = path.stat().st_size
    with output.status(f"uploading {named} ({output.size(total)})") as status:

        def sent(done: int) -> None:
            status(f"uploading {named}: {100 * done // total} % of {output.size(total)}")

        file = client.files.upload(path, purpose="fine-tune", sent=sent)
        status(f"checking {named}")
        file = client.files.wait(file.id, timeout=timeout, name=str(named))
    converted = ", ".join(f"{count} {shape}" for shape, count in file.converted.items())
    output.hint(f"{named}: {file.rows} rows{f', of which converted: {converted}' if converted else ''}, {file.id}")
    return file


def check_readable(path: Path) -> None:
    """Raise `UsageProblem` for a missing or empty file, a folder that is no dataset, a socket and a device."""
    file = local_file(path)
    if path.is_dir():
        try:
            source_files(path)
        except UserError as error:
            raise UsageProblem.of(error.problems) from error
        return
    if file.stat().st_size == 0:
        raise UsageProblem("the file is empty", expected='lines such as {"messages": […]}', where=str(path))

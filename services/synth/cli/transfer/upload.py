"""Uploading a dataset, and waiting until the cluster has checked it."""

from __future__ import annotations

import time
from pathlib import Path

from synth.api.schemas import File
from synth.cli.api.client import Client
from synth.cli.errors import TimedOut, UsageProblem
from synth.cli.tui import output
from synth.errors import Problem
from synth.events import LineProblem


def upload_ready(client: Client, path: Path, *, timeout: float) -> File:
    """Upload a JSONL file and wait until it is ready. Raises `UsageProblem` with the lines that are wrong.

    timeout: seconds for the check, once the bytes are there.
    """
    check_readable(path)
    total = path.stat().st_size
    with output.status(f"uploading {path} ({output.size(total)})") as status:

        def sent(done: int) -> None:
            status(f"uploading {path}: {100 * done // total} % of {output.size(total)}")

        file = client.upload(path, purpose="fine-tune", sent=sent)
        status(f"checking {path}")
        file = wait_ready(client, file, timeout=timeout)
    if file.status == "failed":
        raise UsageProblem.of(line_problems(file.problems, file.bad_lines, str(path)))
    converted = ", ".join(f"{count} {shape}" for shape, count in file.converted.items())
    output.hint(f"{path}: {file.rows} rows{f', of which converted: {converted}' if converted else ''}, {file.id}")
    return file


def wait_ready(client: Client, file: File, *, timeout: float) -> File:
    """Wait until the file is ready or failed. Raises `TimedOut`."""
    deadline, delay = time.monotonic() + timeout, 0.05
    while file.status == "processing":
        if time.monotonic() + delay > deadline:
            fix = f"look again with `synthctl files get {file.id}`; is the files service healthy?"
            raise TimedOut(f"{file.id} is still being checked after {timeout:.0f} s", fix=fix)
        time.sleep(delay)
        delay = min(1.0, delay * 1.5)
        file = client.file(file.id)
    return file


def check_readable(path: Path) -> None:
    """Raises `UsageProblem` when there is no such file, or nothing in it."""
    if not path.is_file():
        what = "this is a directory" if path.is_dir() else "there is no such file"
        raise UsageProblem(what, expected="a JSONL file of conversations", where=str(path))
    if path.stat().st_size == 0:
        raise UsageProblem("the file is empty", expected="a JSONL file of conversations", where=str(path))


def line_problems(kept: list[LineProblem], bad_lines: int | None, name: str) -> list[Problem]:
    """The problems of a file by line, and how many more lines have some. kept: the first problems."""
    problems = [
        Problem(what=f"{p.path}: {p.reason}" if p.path not in ("", "$") else p.reason, where=f"{name}:{p.line}")
        for p in kept
    ]
    more = (bad_lines or 0) - len({p.line for p in kept})
    if more > 0:
        problems.append(Problem(what=f"{more} more lines have problems", where=name))
    return problems or [Problem(what="the file cannot be trained on", where=name)]

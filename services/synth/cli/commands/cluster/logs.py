"""`synthctl logs`: the logs of the cluster's services on this machine, and the stored logs of a job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.submit import DEFAULT_DATA, Data
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_jobs
from synth.cli.tui.output import Format, Output
from synth.console.errors import UsageProblem
from synth.runtime.lines import split_lines

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from synth.client import Client
    from synth.local.cluster.log_lines import LogLine

_LEVELS = {"error": "bold red", "critical": "bold red", "warning": "yellow", "info": "green", "debug": "dim"}
#: Seconds between two looks at a job's stored log, and by how much a line may be stored late.
_POLL_S = 2.0
_LATE_S = 60.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from synth.events.catalogue import SERVICES

    return [(name, "service") for name in (*SERVICES, "nats", "supervisor")] + complete_jobs(ctx, incomplete)


def logs(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVICE|JOB",
            help="A service's name, or a job as `jobs` takes it; every service without it.",
            autocompletion=_complete,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only later lines: 90s, 10m, 2h, 1d ago, or a time as 14:30.")
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines.")] = None,
    data: Data = DEFAULT_DATA,
    fmt: Output = Format.TABLE,
) -> None:
    """Show the logs of the cluster's services on this machine, merged by time; of a job, the lines that name it.

    For a job on another machine it shows the lines that the backend stored: the last ones of trainer, rollouts and
    inference, a few seconds late. `-o json` prints one object per line. The logs of the start before the last one are
    shown too.
    """
    from collections import deque

    from synth.local.cluster.log_lines import find_logs, follow_logs, read_logs

    job = _job(ctx, what) if what and re.fullmatch(r"@last|job_\w*", what) else None
    after = None if since is None else _moment(since)
    if job is not None and not _is_here(data.resolve(), job):
        _show_stored(ctx, job, after=after, tail=tail, follow=follow, fmt=fmt)
        return
    files = find_logs(data.resolve(), None if job else what)
    sizes = {file: file.stat().st_size for file in files}

    def wanted(line: LogLine) -> bool:
        return (job is None or line.concerns(job)) and (after is None or line.time >= after)

    lines = (line for line in read_logs(files) if wanted(line))
    for line in lines if tail is None else deque(lines, maxlen=tail):
        _print(line, fmt)
    if not follow:
        return
    try:
        for line in follow_logs([file for file in files if file.suffix == ".log"], sizes):
            if line is not None and wanted(line):
                _print(line, fmt)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _is_here(data: Path, job: str) -> bool:
    """Return whether a cluster of this folder has written about the job."""
    from synth.local.cluster.log_lines import find_logs, read_logs

    return (data / "logs").is_dir() and any(line.concerns(job) for line in read_logs(find_logs(data, None)))


def _show_stored(
    ctx: typer.Context, job: str, *, after: datetime | None, tail: int | None, follow: bool, fmt: Format
) -> None:
    import time
    from datetime import timedelta

    from synth.jobs.lifecycle import TERMINAL

    with open_client(ctx) as client:
        lines = _read_stored(client, job, since=after)
        for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
            _print(line, fmt)
        try:
            while follow:
                # A later line may be stored earlier, since each service writes at its own times.
                since = max((line.time for line in lines), default=after)
                ended = client.jobs.get(job).state in TERMINAL
                if not ended:
                    time.sleep(_POLL_S)
                known = set(map(_identity, lines))
                newer = _read_stored(client, job, since=since and since - timedelta(seconds=_LATE_S))
                fresh = [line for line in newer if _identity(line) not in known]
                for line in fresh:
                    _print(line, fmt)
                lines += fresh
                follow = not ended
        except KeyboardInterrupt:
            raise typer.Exit from None


def _read_stored(client: Client, job: str, *, since: datetime | None) -> list[LogLine]:
    from synth.local.cluster.log_lines import from_stored

    return [from_stored(line) for line in client.jobs.logs(job, since=since)]


def _identity(line: LogLine) -> tuple[datetime, str, str]:
    return line.time, line.service, line.text


def _job(ctx: typer.Context, text: str) -> str:
    from synth.cli.jobs.ids import find_job_id

    with open_client(ctx) as client:
        return find_job_id(client, text)


def _moment(text: str) -> datetime:
    from datetime import UTC, datetime, timedelta

    if match := re.fullmatch(r"(\d{1,9})([smhd])", text.strip()):
        return datetime.now(UTC) - timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
    if re.fullmatch(r"\d\d?:\d\d(:\d\d)?", text.strip()):
        text = f"{datetime.now():%Y-%m-%d} {text.strip().zfill(5)}"
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError as error:
        expected = "a number and s, m, h or d, as 10m; or a time, as 14:30 or 2026-01-31T14:30"
        raise UsageProblem(f"{text[:40]!r} is no time", expected=expected, where="--since") from error


def _print(line: LogLine, fmt: Format) -> None:
    if fmt is Format.JSON:
        record = {"time": line.time, "service": line.service, "level": line.level, "message": line.text}
        output.print_json_line(record | {"fields": line.fields})
        return
    moment = f"{line.time.astimezone():%m-%d %H:%M:%S.%f}"[:-3]
    shown = " ".join(f"{name}={_value(value)}" for name, value in line.fields.items())
    first, _, rest = line.text.partition("\n")
    if not output.is_terminal():
        output.print_line(f"{moment} {line.level or '-':7} {line.service:10} {first} {shown}".rstrip())
    else:
        from rich.text import Text

        text = Text(f"{moment} ", style="dim")
        text.append(f"{line.level or '-':7} ", style=_LEVELS.get(line.level, "dim"))
        text.append(f"{line.service:10} ", style="cyan").append(f"{first} ", style="default").append(shown, style="dim")
        output.out().print(text)
    for below in split_lines(rest):
        output.print_line(f"    {below}")


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if " " in text else text

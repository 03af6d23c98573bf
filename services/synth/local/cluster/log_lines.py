"""The log files of the embedded cluster as lines for people: one clock, one form, several files merged by time."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from synth.api.schemas import LoggedLine
from synth.console.errors import UsageProblem
from synth.runtime.lines import read_lines, split_lines

#: Seconds between two looks at the files that are followed.
_LOOK_S = 0.2
#: Bytes of a log that are read at once.
_PIECE = 1 << 16
_NATS = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?) \[(\w+)\] (.*)")
_NATS_LEVELS = {"INF": "info", "WRN": "warning", "ERR": "error", "FTL": "error", "DBG": "debug", "TRC": "debug"}
_SUPERVISOR = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
_HIDDEN = ("timestamp", "level", "event", "service", "replica", "exception")


@dataclass(order=True)
class LogLine:
    """One line. text: the message; fields: its values, in the order in which they were written."""

    time: datetime
    service: str = field(compare=False)
    level: str = field(compare=False)
    text: str = field(compare=False)
    fields: dict[str, Any] = field(compare=False, default_factory=dict[str, Any])

    def concerns(self, job: str) -> bool:
        """Return whether the line is about this job: it names it in a field, or in a field's text."""
        return any(job in str(value) for value in self.fields.values()) or job in self.text


def from_stored(line: LoggedLine) -> LogLine:
    """Convert a line that the backend stored."""
    return _for_people(line.time, line.service, line.level, line.message, line.trace, line.fields)


def _for_people(
    time: datetime, service: str, level: str, message: str, trace: object, fields: dict[str, Any]
) -> LogLine:
    name = str(fields.get("replica") or service)
    shown = {name: value for name, value in fields.items() if name not in _HIDDEN}
    return LogLine(time, name.removesuffix("-0"), level, f"{message}\n{trace}" if trace else message, shown)


def find_logs(data: Path, service: str | None) -> list[Path]:
    """Return the logs of a service and its replicas, of the earlier start first; all logs without a service.

    Raises `UsageProblem` with the names that there are.
    """
    folder = data / "logs"
    files = sorted(folder.glob("*.log"))
    if not files:
        raise UsageProblem(
            "no cluster has run here", expected="the logs of `synthctl up`", fix="see --data", where=str(folder)
        )
    names = {file: file.stem for file in files}
    current = [f for f, name in names.items() if service in (None, name) or re.fullmatch(rf"{service}-\d+", name)]
    if not current:
        raise UsageProblem(
            f"there is no service {service!r} here",
            expected=f"{', '.join(names.values())}, or a job's id",
            where=str(folder),
        )
    earlier = [file.with_name(f"{file.name}.1") for file in current]
    return [*(file for file in earlier if file.is_file()), *current]


def read_logs(files: list[Path]) -> Iterator[LogLine]:
    """Return the lines of the files as they are now, merged by time."""
    return heapq.merge(*(_read(file) for file in files))


def follow_logs(files: list[Path], sizes: dict[Path, int]) -> Iterator[LogLine | None]:
    """Yield the lines that are written from now on, for ever; None after each look that reads none.

    sizes: bytes of each file that were read already. A file that restarts (a restarted cluster) is read from its start.
    """
    parsers = {file: _Parser(file) for file in files}
    while True:
        new: list[LogLine] = []
        for file in files:
            if not file.is_file():
                continue
            size, at = file.stat().st_size, sizes.get(file, 0)
            if size < at:
                at = 0
            with file.open("rb") as text:
                text.seek(at)
                read = text.read(size - at)
            # The end of a line that is still being written is read with the rest of it.
            whole = read[: read.rfind(b"\n") + 1]
            sizes[file] = at + len(whole)
            new += [line for raw in split_lines(whole) if (line := parsers[file].parse(raw))]
        yield from sorted(new)
        yield None
        time.sleep(_LOOK_S)


def _read(file: Path) -> Iterator[LogLine]:
    parser = _Parser(file)
    with file.open("rb") as text:
        for raw in read_lines(iter(lambda: text.read(_PIECE), b"")):
            if line := parser.parse(raw):
                yield line


@dataclass
class _Parser:
    """Reads the lines of one file. A line without a time, as of a traceback, has the time of the one before it."""

    file: Path
    last: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.last = datetime.fromtimestamp(self.file.stat().st_mtime, UTC) if self.file.is_file() else datetime.now(UTC)

    def parse(self, raw: bytes) -> LogLine | None:
        text = raw.decode(errors="replace").rstrip()
        service = self.file.name.partition(".log")[0]
        if not text:
            return None
        if text.startswith("{"):
            try:
                data: dict[str, Any] = msgspec.json.decode(text)
                self.last = datetime.fromisoformat(str(data["timestamp"]))
            except (msgspec.DecodeError, KeyError, ValueError):
                return LogLine(self.last, service, "", text)
            level, message = str(data.get("level", "")), str(data.get("event", ""))
            return _for_people(self.last, service, level, message, data.get("exception"), data)
        if match := _NATS.fullmatch(text):
            moment = datetime.strptime(match[1].ljust(26, "0"), "%Y/%m/%d %H:%M:%S.%f")
            self.last = moment.astimezone()
            return LogLine(self.last, service, _NATS_LEVELS.get(match[2], "info"), match[3])
        if match := _SUPERVISOR.fullmatch(text):
            self.last = datetime.fromisoformat(match[1]).astimezone()
            return LogLine(self.last, service, "info", match[2])
        return LogLine(self.last, service, "", text)

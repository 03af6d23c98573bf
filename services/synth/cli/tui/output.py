"""Output of the command line: data on stdout (tables for people, JSON for programs), messages on stderr.

Everything that is printed goes through here, since most of it was written by others: names, errors, text of models and
task apps. None of it reaches the terminal as a control character; only our own styles and cursor moves do.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from synth.cli.tui.series import averaged
from synth.console.plain_text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from synth.errors import Problem

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {
    "succeeded": "green", "ready": "green", "healthy": "green", "ok": "green",
    "started": "cyan", "processing": "cyan", "starting": "cyan",
    "failed": "red", "rejected": "red", "down": "red", "fail": "red",
    "cancelled": "yellow", "cancelling": "yellow", "unhealthy": "yellow", "warn": "yellow",
    "warning": "yellow", "not checked": "cyan",
    "pausing": "yellow", "paused": "yellow",
}  # fmt: skip


class Cell(str):
    """A value as people read it; `raw` is the whole value, which is printed for programs."""

    raw: str

    def __new__(cls, text: str, raw: object) -> Cell:
        cell = super().__new__(cls, text)
        # A difference of two figures is 0.3, not 0.30000000000000004.
        cell.raw = str(round(raw, 12) if isinstance(raw, float) else raw)
        return cell


#: The names in a pipe of the columns whose raw values differ from what people read: moments, seconds, bytes.
RAW_COLUMNS = {
    "age": "created_at",
    "ends in": "ends_at",
    "size": "bytes",
    "took": "seconds",
    "up": "up_seconds",
}


class Format(StrEnum):
    """The format of printed data."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="table for people, json for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@cache
def out() -> Console:
    """Standard output, for data."""
    from synth.console.safe import SafeConsole

    return SafeConsole(highlight=False, emoji=False, **_plain())


@cache
def err() -> Console:
    """Standard error, for messages."""
    from synth.console.safe import SafeConsole

    return SafeConsole(stderr=True, highlight=False, emoji=False, **_plain())


def _plain() -> dict[str, Any]:
    # By itself, rich leaves out the colours and keeps bold and dim, which are escape codes as well.
    return {"color_system": None} if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else {}


def is_terminal() -> bool:
    """Return whether a person looks at standard output."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def message(text: str) -> None:
    """Print a message to stderr."""
    err().print(text, markup=False, soft_wrap=not err().is_terminal)


def hint(text: str) -> None:
    """Print a dim message: what could be done next."""
    err().print(text, style="dim", markup=False, soft_wrap=not err().is_terminal)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    from rich.text import Text

    err().print(Text("warning: ", style="yellow").append(text, style="default"), soft_wrap=not err().is_terminal)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal before an irreversible action. yes: the answer is already given. Raises `CliError` for no."""
    from synth.console.errors import CliError, UsageProblem

    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageProblem(f"{question} there is no terminal on which to confirm it", fix="pass --yes")
    try:
        sure = typer.confirm(printable(question), err=True)
    except typer.Abort:
        sure = False
    if not sure:
        raise CliError("nothing was deleted")


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Print the text of a wait, on a terminal with a spinner. Yields a function that changes the text."""
    if not err().is_terminal:
        yield lambda text: None
        return
    from rich.text import Text

    with err().status(Text(text), spinner="dots") as spinner:
        yield lambda text: spinner.update(Text(text))


def show_problems(problems: Sequence[Problem], *, label: str = "error") -> None:
    """Print each problem in its parts: the place and the problem, the expected value, the fix."""
    from rich.padding import Padding
    from rich.text import Text

    for p in problems:
        line = Text(f"{label}: ", style="bold red")
        if p.where:
            line.append(f"{p.where}: ", style="bold")
        line.append(p.what, style="default")
        err().print(line, soft_wrap=not err().is_terminal)
        for detail, style in ((p.expected and f"expected {p.expected}", "default"), (p.fix, "cyan")):
            if detail and err().is_terminal:
                # The lines that it is wrapped into stand below it.
                err().print(Padding(Text(detail, style=style), (0, 0, 0, 2), expand=False))
            elif detail:
                err().print(Text(f"  {detail}", style=style), soft_wrap=True)


def print_json(data: Any) -> None:
    """Print one JSON document on stdout, indented."""
    from synth.cli.tui.json_fields import to_json_data

    sys.stdout.write(printable_json(json.dumps(to_json_data(data), indent=2, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def print_json_line(data: Any) -> None:
    """Print one JSON document as one line of stdout, flushed so that a reader of the pipe sees it now."""
    sys.stdout.buffer.write(printable_json(msgspec.json.encode(data).decode()).encode() + b"\n")
    sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    """Print one line of data on stdout, neither wrapped nor cut."""
    print_piece(text + "\n")


def print_piece(text: str) -> None:
    """Print text on stdout as it arrives, without an end of the line."""
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def print_document(text: str) -> None:
    """Print a whole text on stdout: as it is into a file or a pipe, where every character of it may count."""
    sys.stdout.write((printable(text) if sys.stdout.isatty() else text) + "\n")
    sys.stdout.flush()


def print_error(text: str) -> None:
    """Print text that is many lines, such as a traceback, on stderr."""
    sys.stderr.write(printable(text))
    sys.stderr.flush()


def print_sentence(text: str) -> None:
    """Print one line of data on stdout, wrapped between words on a terminal."""
    out().print(text, markup=False, soft_wrap=not is_terminal())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: str = "") -> None:
    """Print rows under headings; off a terminal, a line of names and the raw values, separated by tabs and never cut.

    wrap: the column that becomes narrower if the table is too wide for the terminal.
    """
    if is_terminal():
        return out().print(table(columns, rows, wrap=wrap))
    for row in ([RAW_COLUMNS.get(column, column) for column in columns], *rows):
        print_line("\t".join(_raw(cell) for cell in row))
    return None


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: str = "") -> RenderableType:
    """Return rows under headings as a renderable of rich; `wrap` as in `print_table`."""
    from synth.cli.tui.tables.rows import Rows

    return Rows(columns, rows, wrap=wrap, style=style_of)


def room_beside(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width that this terminal has left for one more column of this table; below 1 if none."""
    from synth.cli.tui.tables.rows import GAP, width_of

    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    return out().width - width_of(widths) - GAP


def _raw(cell: str) -> str:
    """Return the whole value of a cell, on one line and without a tab; "-" if it is empty."""
    return " ".join((cell.raw if isinstance(cell, Cell) else cell).split()) or "-"


def print_findings(rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print checks with their results and observations; fixes stand below, and all of it is wrapped, not cut."""
    if not is_terminal():
        return print_table(("check", "result", "found", "fix"), rows)
    from rich.text import Text

    from synth.cli.tui.tables.labelled import labelled

    widest = max((len(check) for check, *_ in rows), default=0) + 2
    found = [
        (
            Text(check.ljust(widest)).append(result, style=style_of(result)),
            Text(found).append(f"\n{fix}" if fix else "", style="cyan"),
        )
        for check, result, found, fix in rows
    ]
    return out().print(*labelled(found))


def print_reports(rows: Sequence[tuple[str, str, str, str, str]]) -> None:
    """Print results on a terminal: the subject beside each, and below it the observation, the place and the fix."""
    from rich.text import Text

    from synth.cli.tui.tables.labelled import labelled

    reports: list[tuple[Text, Text]] = []
    for result, subject, item, where, fix in rows:
        text = Text(subject, style="bold" if item else "")
        for line, style in ((item, "not bold"), (where, "not bold dim"), (fix, "not bold cyan")):
            if line:
                text.append(f"\n{line}", style=style)
        reports.append((Text(result, style=style_of(result)), text))
    out().print(*labelled(reports))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print the fields of one object, a line each."""
    if not is_terminal():
        for label, text in pairs:
            print_line(f"{label}\t{_raw(text)}")
        return
    from rich.text import Text

    from synth.cli.tui.tables.labelled import labelled

    out().print(*labelled([(Text(label, style="dim"), Text(text, style=style_of(text))) for label, text in pairs]))


def named_values(values: Iterable[tuple[str, float]]) -> str:
    """Figures on one line, as `loss=1.674  lr=0.001`; raw with all their digits."""
    values = list(values)
    return Cell("  ".join(f"{n}={number(v)}" for n, v in values), " ".join(f"{n}={v}" for n, v in values))


def style_of(word: str) -> str:
    """Return the colour of a state or health."""
    return _STYLES.get(word, "")


def sparkline(values: Sequence[float], *, width: int = 30) -> str:
    """Draw a whole series with bars, the newest at the right; a longer one is averaged into `width` columns."""
    finite = averaged([v for v in values if v == v and abs(v) != float("inf")], width)
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((v - low) * scale)] for v in finite)


def age(moment: datetime | None) -> str:
    """Return the time since then, as `3m05s`; raw is the moment itself."""
    if moment is None:
        return "-"
    return Cell(duration((datetime.now(UTC) - moment).total_seconds()), moment.isoformat())


def duration(seconds: float) -> str:
    """`12s`, `4m05s`, `2h10m`, `3d4h`; raw in seconds."""
    return Cell(_duration(max(0, round(seconds))), round(seconds, 3))


def seconds(value: float) -> str:
    """Return a duration that may be short, as `0.3s`; raw in seconds."""
    return Cell(f"{value:.1f}s", value) if value < 60 else duration(value)


def _duration(s: int) -> str:
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    if s < 86_400:
        return f"{s // 3600}h{s % 3600 // 60:02d}m"
    return f"{s // 86_400}d{s % 86_400 // 3600}h"


def size(n: float) -> str:
    """Return bytes as `1.2 MB`; raw in bytes."""
    whole = n
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return Cell(f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}", whole)
        n /= 1000
    return Cell(f"{n:.1f} TB", whole)


def count(n: int | None) -> str:
    """Return a number of things, as `12,345`; "-" for none."""
    return Cell(f"{n:,}", n) if n else "-"


def number(value: float | None) -> str:
    """Return a figure in about four significant digits."""
    if value is None or value != value:
        return "nan"
    if 1000 <= abs(value) < 1e6:
        return Cell(f"{value:,.0f}", value)
    if 1e6 <= abs(value) < 1e12:
        return Cell(f"{value / 1e6:.4g}M" if abs(value) < 1e9 else f"{value / 1e9:.4g}G", value)
    if abs(value) < 1000 and value == int(value):
        return str(int(value))
    return Cell(f"{value:.4g}", value)

"""Values of several things, a column for each; a row with a value too wide for a column shows them below each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2
#: Below this a column of folded values cannot be read.
_NARROWEST = 14


class SideBySide:
    """Rows of a label and a value for each thing, under the marks of the things."""

    def __init__(self, marks: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], styles: Sequence[str]) -> None:
        """marks: short names, such as letters. styles: of each thing's mark."""
        self._marks = marks
        self._rows = rows
        self._styles = styles

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label = max((cell_len(name) for name, _ in self._rows), default=0)
        room = max(0, options.max_width - label - _GAP * len(self._marks))
        share = room // len(self._marks)
        # A value that no column can hold stands below its label, and takes no room from the others.
        fitting = [row for row in self._rows if _fits(row[1], share)]
        natural = [max(len(mark), *(cell_len(v[i]) for _, v in fitting), 0) for i, mark in enumerate(self._marks)]
        widths = natural if sum(natural) <= room else _shared(natural, room)
        if fitting:
            yield self._columns([("", self._marks)], widths, label, headed=True)
        for is_fitting, rows in groupby(self._rows, key=lambda row: _fits(row[1], share)):
            if is_fitting:
                yield self._columns(list(rows), widths, label)
            else:
                yield from self._stacked(list(rows))

    def _columns(
        self, rows: Sequence[tuple[str, Sequence[str]]], widths: Sequence[int], label: int, *, headed: bool = False
    ) -> Table:
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
        grid.add_column(no_wrap=True, style="dim", min_width=label)
        for style, width in zip(self._styles, widths, strict=True):
            mark = f"bold {style}".strip() if headed else ""
            grid.add_column(overflow="fold", min_width=width, max_width=width, style=mark)
        for name, values in rows:
            grid.add_row(Text(name), *(Text(value) for value in values))
        return grid

    def _stacked(self, rows: Sequence[tuple[str, Sequence[str]]]) -> RenderResult:
        widest = max(map(len, self._marks))
        for name, values in rows:
            yield Text(name, style="dim")
            for mark, style, value in zip(self._marks, self._styles, values, strict=True):
                grid = Table.grid(padding=(0, 1, 0, 0))
                grid.add_column(width=widest + 2, no_wrap=True)
                grid.add_column(overflow="fold")
                grid.add_row(Text(f"  {mark}", style=f"bold {style}".strip()), Text(value))
                yield grid


def _fits(values: Sequence[str], width: int) -> bool:
    """Return whether each value fits into a column of this width, or is wrapped there between words alone."""
    word = max((cell_len(word) for value in values for word in value.split()), default=0)
    return width >= max(map(cell_len, values), default=0) or width >= max(_NARROWEST, word)


def _shared(natural: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that do not all fit: the narrow ones as they are, the others in equal shares."""
    widths = list(natural)
    left, open_ = room, set(range(len(widths)))
    while open_:
        share = left // len(open_)
        narrow = {i for i in open_ if natural[i] <= share}
        if not narrow:
            for i in open_:
                widths[i] = share
            break
        left -= sum(natural[i] for i in narrow)
        open_ -= narrow
    return widths

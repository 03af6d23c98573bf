"""Values of several things side by side: a column for each where no word is broken by it, else below each other."""

from __future__ import annotations

from collections.abc import Sequence

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
        label = max((len(name) for name, _ in self._rows), default=0)
        natural = [max(len(mark), *(len(values[i]) for _, values in self._rows)) for i, mark in enumerate(self._marks)]
        room = options.max_width - label - _GAP * len(self._marks)
        widths = natural if sum(natural) <= room else _shared(natural, max(room, 0))
        if all(self._can_be_read(i, width) for i, width in enumerate(widths)):
            yield self._columns(widths)
        else:
            yield from self._stacked()

    def _can_be_read(self, i: int, width: int) -> bool:
        """Whether each value of a thing fits into a column, or is wrapped there between words alone."""
        values = [values[i] for _, values in self._rows]
        word = max((len(word) for value in values for word in value.split()), default=0)
        return width >= max(map(len, values), default=0) or width >= max(_NARROWEST, word)

    def _columns(self, widths: Sequence[int]) -> Table:
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=True)
        grid.add_column("", no_wrap=True, style="dim")
        for mark, style, width in zip(self._marks, self._styles, widths, strict=True):
            grid.add_column(
                Text(mark, style=f"bold {style}".strip()), overflow="fold", min_width=width, max_width=width
            )
        for name, values in self._rows:
            grid.add_row(Text(name), *(Text(value) for value in values))
        return grid

    def _stacked(self) -> RenderResult:
        widest = max(map(len, self._marks))
        for name, values in self._rows:
            yield Text(name, style="dim")
            for mark, style, value in zip(self._marks, self._styles, values, strict=True):
                grid = Table.grid(padding=(0, 1, 0, 0))
                grid.add_column(width=widest + 2, no_wrap=True)
                grid.add_column(overflow="fold")
                grid.add_row(Text(f"  {mark}", style=f"bold {style}".strip()), Text(value))
                yield grid


def _shared(natural: Sequence[int], room: int) -> list[int]:
    """The widths of columns that do not all fit: the narrow ones as they are, the others in equal shares."""
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

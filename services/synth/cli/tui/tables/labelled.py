"""Values behind their labels, on a terminal of any width: a value stands beside its label, or below it and whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
#: Text in fewer columns cannot be read.
_NARROWEST = 20


@dataclass(frozen=True)
class Labelled:
    """A label, in a column of so many characters, and its value."""

    label: Text
    value: Text
    column: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - self.column
        longest = max((cell_len(word) for word in self.value.plain.split()), default=0)
        fits = max(map(cell_len, self.value.plain.split("\n"))) <= room
        if not fits and (room < _NARROWEST or room < longest <= options.max_width - _GAP):
            yield self.label
            yield Padding(self.value, (0, 0, 0, _GAP), expand=False)
            return
        grid = Table.grid()
        grid.add_column(width=self.column, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self.label, self.value)
        yield grid


def labelled(rows: Sequence[tuple[Text, Text]]) -> list[Labelled]:
    """Return the items with one width for their labels."""
    column = max((label.cell_len for label, _ in rows), default=0) + _GAP
    return [Labelled(label, value, column) for label, value in rows]

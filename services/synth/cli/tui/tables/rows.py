"""Rows under headings on a terminal of any width: a text that does not fit is wrapped or moved below, never cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from synth.console.safe import wrappable

#: Columns between two cells.
GAP = 2
#: Text in fewer columns cannot be read.
_NARROWEST = 20
_INDENT = 2
_NOTHING = ("", "-")

Style = Callable[[str], str]
#: A value of a table; a text has its styles already.
Value = str | Text


class Rows:
    """A table. If it is too wide for the terminal, one column becomes narrower: `wrap`.

    Its texts are wrapped in the width left; a text with a word that would be broken stands below its row. If not even
    the other columns fit, each row becomes lines of names and values. style: of a cell, by its text.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[Value]], *, wrap: str = "", style: Style = lambda text: ""
    ) -> None:
        self._columns = columns
        self._rows = [[wrappable(v if isinstance(v, Text) else Text(v, style=style(v))) for v in row] for row in rows]
        self._wrap = columns.index(wrap) if wrap else None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(cell_len(str(cell)) for cell in cells) for cells in zip(self._columns, *self._rows, strict=True)]
        left = options.max_width - width_of(widths)
        at = self._wrap
        if left >= 0:
            yield from self._table(console, widths)
        elif at is not None and self._wraps(at, left + widths[at]):
            widths[at] += left
            yield from self._table(console, widths)
        elif at is not None and left + widths[at] + GAP >= 0:
            yield from self._table(console, widths, left_out=at)
        else:
            for row in self._rows:
                yield self._card(console, row, options.max_width)

    def _wraps(self, column: int, width: int) -> bool:
        """Return whether a value of this column can be read in so little room."""
        values = [row[column].plain for row in self._rows]
        return width >= _NARROWEST and any(_longest_word(v) <= width for v in values if v not in _NOTHING)

    def _table(self, console: Console, widths: Sequence[int], *, left_out: int | None = None) -> RenderResult:
        """Return the rows in columns; what would be broken there stands below its row."""
        shown = [i for i in range(len(widths)) if i != left_out]
        yield _line([Text(self._columns[i].upper(), style="bold dim") for i in shown], [widths[i] for i in shown])
        for row in self._rows:
            below = [i for i, value in enumerate(row) if i == left_out or _longest_word(value.plain) > widths[i]]
            cells = [(Text() if i in below else row[i]).wrap(console, widths[i]) for i in shown]
            for n in range(max(map(len, cells))):
                yield _line([cell[n] if n < len(cell) else Text() for cell in cells], [widths[i] for i in shown])
            for i in below:
                if row[i].plain not in _NOTHING:
                    yield Padding(self._named(i, row[i]), (0, 0, 0, _INDENT), expand=False)

    def _card(self, console: Console, row: Sequence[Text], width: int) -> Text:
        """Return the first value and then the others with their names, those left out that there are not."""
        first = Text(row[0].plain, style="bold")
        # A number alone does not show its meaning.
        if first.plain.isdigit():
            first = Text(f"{self._columns[0]} ", style="dim").append_text(first)
        others = [self._named(i, value) for i, value in enumerate(row) if i and value.plain not in _NOTHING]
        return flow([first, *others], width, indent=_INDENT, console=console)

    def _named(self, column: int, value: Text) -> Text:
        return Text.assemble((f"{self._columns[column]} ", "dim"), value)


def width_of(widths: Sequence[int]) -> int:
    """Return the columns of the terminal that a table with columns of these widths takes."""
    return sum(widths) + GAP * (len(widths) - 1)


def flow(parts: Sequence[Text], width: int, *, indent: int = 0, console: Console | None = None) -> Text:
    """Join parts side by side, with line breaks only between two parts; the lines after the first are indented.

    A part that is longer than a line is wrapped; if lines are indented, by the console.
    """
    text, used = Text(overflow="fold"), 0
    for n, part in enumerate(parts):
        if console and part.cell_len > width - indent:
            lines = part.wrap(console, width - indent)
            text.append("\n" + " " * indent if n else "").append_text(Text("\n" + " " * indent).join(lines))
            used = indent + lines[-1].cell_len
            continue
        if n and used + GAP + part.cell_len > width:
            text.append("\n" + " " * indent)
            used = indent
        elif n:
            text.append(" " * GAP)
            used += GAP
        text.append_text(part)
        used += part.cell_len
    return text


def _line(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True)
    for n, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        line.append_text(cell)
        if n < len(cells) - 1:
            line.append(" " * (width - cell.cell_len + GAP))
    line.rstrip()
    return line


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)

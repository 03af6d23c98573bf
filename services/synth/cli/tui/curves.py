"""Curves over each other in the terminal, by plotext: braille in colours, or letters without colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.cli.tui import output
from synth.cli.tui.series import averaged
from synth.runtime.lines import split_lines

#: The colours of the curves, in order; names that plotext and rich share.
COLOURS = ("cyan", "magenta", "yellow", "green", "red", "blue")
_WIDEST_PLOT = 110
_TICKS = 5
_COLUMNS_A_TICK = 14
#: Braille has two points a column.
_POINTS_A_COLUMN = 2


@dataclass(frozen=True)
class Curve:
    """One curve. mark: the letter to draw it with if colours cannot distinguish it from the others.

    steps, values: of the same length; every value is finite.
    """

    mark: str
    steps: Sequence[int]
    values: Sequence[float]


def colour_of(index: int) -> str:
    """Return the colour of the curve at this place."""
    return COLOURS[index % len(COLOURS)]


def print_curves(curves: Sequence[Curve], *, title: str, height: int) -> None:
    """Print curves over each other, as wide as the terminal; prints nothing if none has a point."""
    from rich.text import Text

    console = output.out()
    colours = console.color_system is not None and not console.no_color
    width = min(console.width - 1, _WIDEST_PLOT)
    if text := draw(curves, title=title, width=width, height=height, colours=colours):
        console.print(Text.from_ansi(text), soft_wrap=True)


def draw(curves: Sequence[Curve], *, title: str, width: int, height: int, colours: bool) -> str:
    """Return the curves as lines of text, with ANSI colours or none; "" if none has a point.

    A curve of more points than columns is drawn by the means of neighbours.
    """
    import plotext

    drawn = [(i, c) for i, c in enumerate(curves) if c.values]
    if not drawn:
        return ""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    for i, curve in drawn:
        most = _POINTS_A_COLUMN * width
        steps, values = averaged([float(s) for s in curve.steps], most), averaged(curve.values, most)
        marker = "braille" if colours or len(curves) == 1 else curve.mark
        plotext.plot(steps, values, marker=marker, color=colour_of(i) if colours else None)
    low, high = min(min(c.values) for _, c in drawn), max(max(c.values) for _, c in drawn)
    if low == high:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    levels = [low + (high - low) * i / (_TICKS - 1) for i in range(_TICKS)]
    plotext.ylim(low, high)
    plotext.yticks(levels, [output.number(level) for level in levels])
    first, last = min(c.steps[0] for _, c in drawn), max(c.steps[-1] for _, c in drawn)
    plotext.xticks(*_step_ticks(first, last, most=max(2, width // _COLUMNS_A_TICK)))
    plotext.title(title)
    text = str(plotext.build())
    plotext.clear_figure()
    if not colours:
        text = str(plotext.uncolorize(text))
    return "\n".join(line.rstrip() for line in split_lines(text))


def _step_ticks(first: int, last: int, *, most: int) -> tuple[list[int], list[str]]:
    count = min(most, last - first + 1)
    steps = sorted({first + round((last - first) * i / max(1, count - 1)) for i in range(count)})
    return steps, [str(step) for step in steps]

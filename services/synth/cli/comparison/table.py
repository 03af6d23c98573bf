"""Several means with their intervals, and what each has more than the first."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

from synth.cli.tui import output
from synth.cli.tui.output import Cell

if TYPE_CHECKING:
    from synth.cli.comparison.paired import Measured
    from synth.estimates.intervals import Interval, PairedDifference

#: Letters of the alphabet: as many as can be compared in one table.
MARKS = string.ascii_uppercase


def paired_table(
    measured: Sequence[Measured], differences: Sequence[PairedDifference | None], *, heading: str, unit: str
) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows: a row for each with its mean, then a row for each difference to the first.

    heading: of the titles, such as "model". unit: of the pairs, "seed" or "row".
    """
    rows = [
        [mark, m.title, output.number(m.mean) if m.by_key else "-", str(len(m.by_key)), interval_cell(m.interval)]
        for mark, m in zip(MARKS, measured, strict=False)
    ]
    for mark, difference in zip(MARKS[1:], differences[1:], strict=False):
        of_both = (
            ["-", "0", "-"]
            if difference is None
            else [signed(difference.mean), str(difference.seeds), interval_cell(difference.interval)]
        )
        rows.append([f"{mark} - A", "-", *of_both])
    return ["label", heading, "mean", f"{unit}s", "95 % interval"], rows


def print_paired(
    measured: Sequence[Measured], differences: Sequence[PairedDifference | None], *, heading: str, unit: str
) -> None:
    """Print the table of `paired_table`, and a verdict on each difference."""
    from synth.cli.comparison.paired import verdict

    head, rows = paired_table(measured, differences, heading=heading, unit=unit)
    output.print_table(head, rows, wrap=heading)
    for mark, difference in zip(MARKS[1:], differences[1:], strict=False):
        if difference is not None:
            counts = f"better on {difference.better}, worse on {difference.worse}, the same on {difference.equal}"
            output.print_sentence(f"{unit}s: {mark} is {counts}")
        output.print_sentence(verdict(difference, first="A", other=mark, unit=unit))


def interval_cell(interval: Interval | None) -> str:
    """Both ends of an interval: as people read them, and apart for programs."""
    return "-" if interval is None else interval_text(interval.low, interval.high)


def interval_text(low: float, high: float) -> str:
    return Cell(f"{output.number(low)} … {output.number(high)}", f"{low} {high}")


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return Cell(("+" if value > 0 else "") + output.number(value), value)

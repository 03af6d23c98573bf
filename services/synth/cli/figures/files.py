"""A job's metrics as a file: a picture, or a table for other programs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from synth.api.schemas import Point
from synth.cli.tui.json_fields import to_json_data
from synth.console.errors import UsageProblem

SUFFIXES = (".png", ".svg", ".csv", ".json")


def check_suffix(path: Path) -> None:
    """Raise `UsageProblem` for a file whose suffix is no known kind of figure."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageProblem(f"{path} has no kind of file", expected=f"a name with {', '.join(SUFFIXES)}", where="--out")


def save_points(points: Sequence[Point], path: Path, *, names: Sequence[str], drawn: Sequence[str], title: str) -> None:
    """Write the metrics of a job. names: all columns of a table, in their order; drawn: the panels of a picture."""
    match path.suffix.lower():
        case ".csv":
            _save_table(points, path, names)
        case ".json":
            import msgspec

            path.write_bytes(msgspec.json.format(msgspec.json.encode({"points": to_json_data(list(points))})) + b"\n")
        case _:
            from synth.cli.figures.drawing import Line, Panel, save_figure

            panels = [Panel(n, [Line(*_series(points, n))]) for n in drawn]
            save_figure(panels, path, title=title)


def by_step(points: Sequence[Point]) -> list[tuple[int, dict[str, float]]]:
    """Return the values of each step by their names, ascending."""
    steps: dict[int, dict[str, float]] = {}
    for p in points:
        steps.setdefault(p.step, {})[p.name] = p.value
    return sorted(steps.items())


def _save_table(points: Sequence[Point], path: Path, names: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("step", *names))
        table.writerows((step, *(values.get(n, "") for n in names)) for step, values in by_step(points))


def _series(points: Sequence[Point], name: str) -> tuple[list[int], list[float]]:
    of_name = [p for p in points if p.name == name]
    return [p.step for p in of_name], [p.value for p in of_name]

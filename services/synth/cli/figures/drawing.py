"""Curves as a picture in a file, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

_COLOURS = ("#2a6fbb", "#c2571a", "#3d8b4f", "#8a4fa3", "#a38a2a", "#5a5a5a")
_WIDTH, _PANEL_HEIGHT = 7.0, 2.6
_ONE_PANEL_HEIGHT = 4.0


@dataclass(frozen=True)
class Line:
    """One curve. steps, values: of the same length. marker: of matplotlib; label: "" for none in the legend."""

    steps: Sequence[int]
    values: Sequence[float]
    label: str = ""
    marker: str = "o"


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes. limits: of the y axis; None fits them to the values."""

    name: str
    lines: Sequence[Line]
    limits: tuple[float, float] | None = None


def save_figure(panels: Sequence[Panel], path: Path, *, title: str, steps: str = "step") -> None:
    """Draw panels below each other, as a PNG or an SVG by the name of the file. steps: the label of the x axis."""
    height = _ONE_PANEL_HEIGHT if len(panels) == 1 else _PANEL_HEIGHT * len(panels)
    figure = Figure(figsize=(_WIDTH, height), dpi=150)
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        for n, line in enumerate(panel.lines):
            # Dots of a long run would hide its curve.
            size = 3 if len(line.steps) <= 100 else 0
            style = {"color": _COLOURS[n % len(_COLOURS)], "linewidth": 2, "marker": line.marker, "markersize": size}
            axes.plot(line.steps, line.values, label=line.label, **style)
        if any(line.label for line in panel.lines):
            axes.legend(frameon=False)
        axes.set_ylabel(panel.name)
        if panel.limits is not None:
            axes.set_ylim(panel.limits)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[-1].set_xlabel(steps)
    all_axes[0].set_title(title, loc="left")
    figure.tight_layout()
    figure.savefig(path)

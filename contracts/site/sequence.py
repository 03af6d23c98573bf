"""Draws a Mermaid sequence diagram as SVG, so that the site loads no script from the internet.

It knows participants, the two arrows, notes over one participant, and loops, and refuses any other line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

_COLUMN, _ROW, _HEAD = 130, 34, 44
_LINE = re.compile(
    r"participant (?P<id>\w+) as (?P<label>.+)"
    r"|(?P<source>\w+)(?P<arrow>--?>>)(?P<target>\w+): (?P<message>.+)"
    r"|Note over (?P<over>\w+): (?P<note>.+)"
    r"|loop (?P<loop>.+)"
    r"|(?P<end>end)"
)


@dataclass
class _Drawing:
    names: dict[str, str] = field(default_factory=dict[str, str])
    shapes: list[str] = field(default_factory=list[str])
    loops: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    y: float = _HEAD + 24

    def x(self, participant: str) -> float:
        return (list(self.names).index(participant) + 0.5) * _COLUMN

    @property
    def width(self) -> float:
        return len(self.names) * _COLUMN


def draw(text: str) -> str:
    """Return the diagram as one HTML block. Raises ValueError for a line that it does not know."""
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    if first != "sequenceDiagram":
        raise ValueError(f"{first}: only a sequenceDiagram can be drawn")
    drawing = _Drawing()
    for line in lines:
        parsed = _LINE.fullmatch(line)
        if parsed is None:
            raise ValueError(f"{line}: not a line of a sequence diagram that can be drawn")
        _STEPS[next(name for name in _STEPS if parsed[name])](drawing, parsed)
    heads = [_head(drawing, name, label) for name, label in drawing.names.items()]
    size = f'viewBox="0 0 {drawing.width:g} {drawing.y:g}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{"".join([*heads, *drawing.shapes])}</svg>'
    return f'<figure class="sequence">{svg}</figure>\n'


def _head(drawing: _Drawing, name: str, label: str) -> str:
    x, half = drawing.x(name), _COLUMN / 2 - 8
    return (
        f'<line class="life" x1="{x:g}" y1="{_HEAD}" x2="{x:g}" y2="{drawing.y:g}"/>'
        f'<rect class="head" x="{x - half:g}" y="6" width="{2 * half:g}" height="{_HEAD - 10}" rx="6"/>'
        f'<text x="{x:g}" y="{_HEAD / 2 + 6:g}" class="name">{escape(label)}</text>'
    )


def _participant(drawing: _Drawing, line: re.Match[str]) -> None:
    drawing.names[line["id"]] = line["label"]


def _message(drawing: _Drawing, line: re.Match[str]) -> None:
    start, end = drawing.x(line["source"]), drawing.x(line["target"])
    tip = 8 if end > start else -8
    kind = "arrow reply" if line["arrow"] == "-->>" else "arrow"
    drawing.shapes.append(
        f'<text x="{(start + end) / 2:g}" y="{drawing.y:g}">{escape(line["message"])}</text>'
        f'<line class="{kind}" x1="{start:g}" y1="{drawing.y + 7:g}" x2="{end - tip:g}" y2="{drawing.y + 7:g}"/>'
        f'<path class="tip" d="M{end:g} {drawing.y + 7:g}l{-tip} -4v8z"/>'
    )
    drawing.y += _ROW


def _note(drawing: _Drawing, line: re.Match[str]) -> None:
    x, half = drawing.x(line["over"]), max(_COLUMN / 2 - 4, len(line["note"]) * 3.4)
    x = min(max(x, half + 2), drawing.width - half - 2)
    drawing.shapes.append(
        f'<rect class="note" x="{x - half:g}" y="{drawing.y - 15:g}" width="{2 * half:g}" height="24" rx="3"/>'
        f'<text x="{x:g}" y="{drawing.y + 1:g}">{escape(line["note"])}</text>'
    )
    drawing.y += _ROW


def _loop(drawing: _Drawing, line: re.Match[str]) -> None:
    drawing.loops.append((drawing.y - 14, line["loop"]))
    drawing.y += _ROW


def _end(drawing: _Drawing, line: re.Match[str]) -> None:
    top, label = drawing.loops.pop()
    width, height = drawing.width - 12, drawing.y - top - 14
    drawing.shapes.append(
        f'<rect class="loop" x="6" y="{top:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        f'<text class="label" x="16" y="{top + 18:g}">loop: {escape(label)}</text>'
    )
    drawing.y += 12


_STEPS: dict[str, Callable[[_Drawing, re.Match[str]], None]] = {
    "id": _participant,
    "source": _message,
    "over": _note,
    "loop": _loop,
    "end": _end,
}

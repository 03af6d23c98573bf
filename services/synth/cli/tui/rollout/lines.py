"""Lines of a label and a text, as a rollout is read: on a terminal of any width, and off it."""

from __future__ import annotations

from collections.abc import Iterable

from synth.cli.tui import output
from synth.cli.tui.rollout.pictures import FetchImage, drawing

_LABEL = 10
_STYLES = {"error": "red", "thinks": "dim", "reward": "bold", "dropped": "yellow", "note": "dim", "cut": "yellow"}

#: A label and its text; without a text, a heading; labelled IMAGE, the sha256 of an image that the text before names.
Line = tuple[str, str | None]
IMAGE = "image"


def print_lines(lines: Iterable[Line], fetch: FetchImage | None = None) -> None:
    """Print labels at the left and texts wrapped beside them; off a terminal, lines that are never cut.

    fetch: where images come from that are drawn; None draws none.
    """
    if not output.is_terminal():
        for label, text in lines:
            if label == IMAGE:
                continue
            if text is None:
                output.print_line(f"\n{label}")
                continue
            for n, line in enumerate(text.split("\n")):
                output.print_line(f"{label if n == 0 else '':<{_LABEL}} {line}".rstrip())
        return
    from rich.text import Text

    from synth.cli.tui.tables.labelled import Labelled

    for label, text in lines:
        if text is None:
            output.out().print(Text(f"\n{label}", style="bold cyan"))
            continue
        if label == IMAGE:
            _draw(text, fetch)
            continue
        style = _STYLES.get(label, "")
        output.out().print(Labelled(Text(label, style=style or "cyan"), Text(text, style=style), _LABEL + 1))


def _draw(sha256: str, fetch: FetchImage | None) -> None:
    from rich.padding import Padding

    body = fetch(sha256) if fetch is not None else None
    if body is not None:
        output.out().print(Padding(drawing(body), (0, 0, 0, _LABEL + 1)))

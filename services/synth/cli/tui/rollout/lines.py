"""Lines of a label and a text, as a rollout is read: on a terminal of any width, and off it."""

from __future__ import annotations

from collections.abc import Iterable

from synth.cli.tui import output

_LABEL = 10
_STYLES = {"error": "red", "thinks": "dim", "reward": "bold", "dropped": "yellow", "note": "dim", "cut": "yellow"}

#: A label and its text; without a text, a heading.
Line = tuple[str, str | None]


def print_lines(lines: Iterable[Line]) -> None:
    """Print labels at the left and texts wrapped beside them; off a terminal, lines that are never cut."""
    if not output.is_terminal():
        for label, text in lines:
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
        style = _STYLES.get(label, "")
        output.out().print(Labelled(Text(label, style=style or "cyan"), Text(text, style=style), _LABEL + 1))

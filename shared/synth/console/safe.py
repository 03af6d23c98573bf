"""A console of rich on which foreign text is only text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from synth.console.plain_text import printable, visible_joiners


class SafeConsole(Console):
    """Prints characters that a terminal would obey as symbols.

    Rich keeps control codes apart from text, and adds styles only when it writes. So every text here is foreign.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        shown = wrappable(renderable) if isinstance(renderable, Text) else renderable
        for segment in super().render(shown, options):
            if segment.control or (safe := printable(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(safe, segment.style)


def wrappable(text: Text) -> Text:
    """Return the text with visible joiners, so that rich can wrap it."""
    visible = visible_joiners(text.plain)
    if visible == text.plain:
        return text
    changed = text.copy()
    changed.plain = visible
    return changed

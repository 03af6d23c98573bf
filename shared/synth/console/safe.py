"""A console of rich on which foreign text is only text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from synth.console.plain_text import printable


class SafeConsole(Console):
    """Prints characters that a terminal would obey as symbols.

    Rich keeps control codes apart from text, and adds styles only when it writes. So every text here is foreign.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or (safe := printable(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(safe, segment.style)

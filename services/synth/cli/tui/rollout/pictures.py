"""Images of a rollout, drawn in the terminal: by its own graphics if it has them, else as coloured half blocks."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

from synth.cli.tui import output

#: Columns of a drawing.
_WIDTH = 32

FetchImage = Callable[[str], bytes | None]
"""Returns the file of an image by its sha256; None if it is no longer stored."""


def can_draw() -> bool:
    """Return whether standard output is a terminal with colours, in which an image can be drawn at all."""
    if not output.is_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    # The terminal reports its graphics on the input, so standard input must be the terminal.
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return False
    try:
        # Some terminals of machines say that they have no size, and then an image has none.
        return os.get_terminal_size(1).columns > 0
    except OSError:
        return False


def drawing(body: bytes) -> Any:
    """Return an image's file as a renderable of rich; a sentence if it cannot be decoded."""
    # The library queries the terminal when it is imported.
    from textual_image.renderable import Image

    try:
        return Image(io.BytesIO(body), width=min(_WIDTH, output.out().width - 4), height="auto")
    # Pillow raises any exception of its decoders for a broken file.
    except Exception as error:  # noqa: BLE001
        return f"(it cannot be drawn: {error})"

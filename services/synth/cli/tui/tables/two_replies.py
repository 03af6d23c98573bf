"""The replies of models to one message, side by side while they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 3
#: A reply in fewer columns cannot be read: below that they stand below each other.
_NARROWEST = 32
#: Seconds between two checks of a silent stream, so that Ctrl-C ends the wait.
_LOOK_S = 0.05


@dataclass
class _ShownReply:
    """A model's reply so far. error: why it ended early."""

    model: str
    pieces: list[str] = field(default_factory=list[str])
    error: Exception | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Replies:
    """Draws replies in columns, on a narrow terminal below each other."""

    def __init__(self, replies: Sequence[_ShownReply]) -> None:
        self._replies = replies

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [Text(reply.model, style="bold", overflow="fold") for reply in self._replies]
        texts = [Text(reply.text, overflow="fold") for reply in self._replies]
        width = (options.max_width - _GAP * (len(texts) - 1)) // len(texts)
        if width < _NARROWEST:
            yield Group(*(part for pair in zip(heads, texts, strict=True) for part in pair))
            return
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        for _ in texts:
            grid.add_column(width=width, overflow="fold")
        grid.add_row(*heads)
        grid.add_row(*texts)
        yield grid


def print_together(models: Sequence[str], streams: Sequence[Iterator[str]], *, console: Console) -> list[str]:
    """Print what models say to a terminal, each in its column; returns their texts.

    Raises the error of a stream that broke. Ctrl-C stops all of them.
    """
    from rich.live import Live

    replies = [_ShownReply(model) for model in models]
    drawing = Replies(replies)
    with Live(get_renderable=lambda: drawing, console=console, refresh_per_second=8, transient=True):
        _read_all(replies, streams)
    # The live drawing is cut at the height of the terminal, so the whole is printed at the end.
    console.print(drawing)
    if error := next((reply.error for reply in replies if reply.error), None):
        raise error
    return [reply.text for reply in replies]


def _read_all(replies: Sequence[_ShownReply], streams: Sequence[Iterator[str]]) -> None:
    """Read all streams to their ends at one time."""
    stopped = threading.Event()
    readers = [
        threading.Thread(target=_read, args=(reply, stream, stopped.is_set), daemon=True)
        for reply, stream in zip(replies, streams, strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        while any(reader.is_alive() for reader in readers):
            for reader in readers:
                reader.join(_LOOK_S)
    finally:
        stopped.set()


def _read(reply: _ShownReply, stream: Iterator[str], stopped: Callable[[], bool]) -> None:
    try:
        for piece in stream:
            if stopped():
                return
            reply.pieces.append(piece)
    except Exception as error:  # noqa: BLE001 - the edge of the thread: raised again where the replies are shown
        reply.error = error

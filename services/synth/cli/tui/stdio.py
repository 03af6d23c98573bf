"""Output into a pipe whose reader has gone ends the program without a word, as other tools end."""

from __future__ import annotations

import io
import os
import signal
import sys


class _Pipe(io.FileIO):
    """A file descriptor that ends the program when nobody reads from it any more."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            # Buffered output, and output written during the exit, would hit the closed pipe too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            raise SystemExit(128 + signal.SIGPIPE) from None


def end_quietly_without_reader() -> None:
    """Put streams of that kind in place of stdout and stderr, where these are no terminals.

    SIGPIPE itself stays ignored: it would also end the program for a connection that the backend closes.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.isatty():
            continue
        stream.flush()
        pipe = io.BufferedWriter(_Pipe(stream.fileno(), "wb", closefd=False))
        text = io.TextIOWrapper(pipe, encoding=stream.encoding, errors=stream.errors, line_buffering=name == "stderr")
        setattr(sys, name, text)

"""A file that reports how much of it has been read, for the progress of an upload."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path


class CountedFile(io.BufferedReader):
    """A file that calls `told` with its position after each read."""

    def __init__(self, path: Path, told: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path))
        self._told = told

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._told(self.tell())
        return data

"""The rows of a file of prompts, each read by its number; memory holds only the position and a digest of each row."""

from __future__ import annotations

import asyncio
import zlib
from array import array
from typing import Any

import msgspec

from synth.blobs import BlobCorrupt, BlobStore
from synth.errors import Problem, UserError
from synth.events import BlobRef
from synth.graders.schema import Grader, templates_of
from synth.graders.template import ItemLacks, check_item

_SHOWN = 20


class PromptRows:
    """The byte offsets of the begin and the end of each row of a checked file, and its CRC: twenty bytes per row."""

    def __init__(self, blobs: BlobStore, ref: BlobRef) -> None:
        self._blobs = blobs
        self._ref = ref
        self._starts = array("Q")
        self._ends = array("Q")
        self._digests = array("I")

    @classmethod
    async def open(cls, blobs: BlobStore, ref: BlobRef, grader: Grader, *, where: str) -> PromptRows:
        """Check every row, in constant memory. where: the name of the file in problems.

        Raises `UserError` with the first 20 lines that lack a field to which the grader refers.
        """
        rows = cls(blobs, ref)
        check = _RowCheck(rows, grader, where)
        async for piece in blobs.stream(ref):
            await asyncio.to_thread(check.feed, piece)
        await asyncio.to_thread(check.feed, b"\n")
        if check.problems:
            raise UserError(check.problems)
        return rows

    async def row(self, number: int) -> dict[str, Any]:
        """Return a row by its number, from 0. Raises `BlobCorrupt` for a row that has changed since."""
        line = await self._blobs.get_range(self._ref, self._starts[number], self._ends[number])
        if zlib.crc32(line) != self._digests[number]:
            raise BlobCorrupt(f"row {number} of {self._ref.uri} is not what was written")
        return msgspec.json.decode(line)

    def add(self, start: int, line: bytes) -> None:
        """Add the next row. start: its position."""
        self._starts.append(start)
        self._ends.append(start + len(line))
        self._digests.append(zlib.crc32(line))


class _RowCheck:
    """The check of a file's rows, which takes the file in pieces of any size."""

    def __init__(self, rows: PromptRows, grader: Grader, where: str) -> None:
        self.problems: list[Problem] = []
        self._rows = rows
        self._templates = templates_of(grader)
        self._where = where
        self._rest = b""
        self._at = 0
        self._line = 0

    def feed(self, piece: bytes) -> None:
        lines = piece.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        for line in lines:
            self._line += 1
            if line and not line.isspace():
                self._rows.add(self._at, line)
                self._read(line)
            self._at += len(line) + 1

    def _read(self, line: bytes) -> None:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            # The check of an upload passes over fields that no training reads.
            self._add(f"a field of the row cannot be read: {error}", "JSON whose numbers have a size", "mend the row")
            return
        for place, template in self._templates.items():
            try:
                check_item(template, row)
            except ItemLacks as lacks:
                self._add(str(lacks), f"a row with what {place} refers to", "mend the row, or the template")

    def _add(self, what: str, expected: str, fix: str) -> None:
        if len(self.problems) < _SHOWN:
            where = f"{self._where}:{self._line}"
            self.problems.append(Problem(what=what, expected=expected, fix=fix, where=where))

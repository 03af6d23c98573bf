"""Checks a file of conversations or pairs as its bytes arrive, in constant memory: the first bad lines are kept."""

from __future__ import annotations

from synth.datasets.conversations import LineFault, line_problem, read_line
from synth.datasets.rows import why_unread
from synth.datasets.token_estimate import TokenEstimate
from synth.events import FileReady, FileRejected, LineProblem
from synth.runtime.json_values import has_more_values

PROBLEMS_KEPT = 20
#: Bytes of a line whose values are not counted: to decode even the worst takes some milliseconds.
_SHORT_LINE = 64 << 10
#: Names of columns that are counted; the rows with others are counted together, under an ellipsis.
_NAMES_KEPT = 200
_NAME_CHARACTERS = 80
_OTHERS = "…"
_REASON_CHARACTERS = 4000
#: By whether the line that does not fit is a pair.
_MIXED = {
    True: ("$", "a preference pair in a file of conversations; expected one of the two in all lines"),
    False: ("$", "a conversation in a file of preference pairs; expected one of the two in all lines"),
}


class FileCheck:
    """Takes a file in pieces of any size; `finish` gives the verdict.

    max_line_bytes, max_line_values: a longer line, or one of more JSON values, is a bad one. image_rows: how many rows
    contain images, in any form. pairs: how many are preference pairs; the first good row decides the kind of all.
    prompts, unanswered, converted, annotations: as in `FileReady`.
    """

    def __init__(self, *, max_line_bytes: int = 64 << 20, max_line_values: int = 400_000) -> None:
        self.image_rows = 0
        self.pairs: int = 0
        self.prompts: int = 0
        self.unanswered: int = 0
        self.converted: dict[str, int] = {}
        self.annotations: dict[str, int] = {}
        self._max_line_bytes = max_line_bytes
        self._too_long = ("$", f"the line is longer than {max_line_bytes} bytes (SYNTH_MAX_LINE_BYTES)")
        self._max_line_values = max_line_values
        self._too_wide = ("$", f"the line has more than {max_line_values} JSON values (SYNTH_MAX_LINE_VALUES)")
        self._rest = b""
        self._skipping = False
        self._line = 0
        self._rows = 0
        self._messages = 0
        self._characters = 0
        self._lengths: list[int] = []
        self._tokens = TokenEstimate()
        self._bad_lines = 0
        self._problems: list[LineProblem] = []
        self._unread: dict[str, int] = {}
        self._unread_line = 0

    def feed(self, piece: bytes) -> None:
        """Check the lines that this piece completes."""
        lines = piece.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        for line in lines:
            self._check(line)
        if len(self._rest) > self._max_line_bytes:
            if not self._skipping:
                self._bad(self._line + 1, self._too_long)
            self._rest, self._skipping = b"", True

    def finish(self) -> FileReady | FileRejected:
        """Return the verdict, after the last piece."""
        if self._rest or self._skipping:
            self._check(self._rest)
        if self._rows == 0 and self._bad_lines == 0:
            self._bad(1, ("$", "the file has no rows; expected one conversation, or one preference pair, a line"))
        if self._bad_lines:
            problems = [*self._unread_problems(), *self._problems]
            problems.sort(key=lambda problem: problem.line)
            return FileRejected(bad_lines=self._bad_lines, problems=problems[:PROBLEMS_KEPT])
        return FileReady(
            rows=self._rows,
            messages=self._messages,
            characters=self._characters,
            tokens=self._tokens.total(characters=self._characters, messages=self._messages),
            lengths=self._lengths,
            pairs=self.pairs,
            prompts=self.prompts,
            unanswered=self.unanswered,
            converted=self.converted,
            annotations=self.annotations,
        )

    def _check(self, line: bytes) -> None:
        self._line += 1
        if self._skipping:
            self._skipping = False
            return
        if not line or line.isspace():
            return
        if len(line) > self._max_line_bytes:
            result = self._too_long
        elif len(line) > _SHORT_LINE and has_more_values(line, self._max_line_values):
            result = self._too_wide
        else:
            result = read_line(line)
        if isinstance(result, tuple):
            self._bad(self._line, result)
            return
        if self._rows and result.pair != bool(self.pairs):
            self._bad(self._line, _MIXED[result.pair])
            return
        if self._rows and self.unanswered and not result.prompt:
            self._bad(self._line, ("$.messages", "the last message is not the user's, in a file of prompts"))
            return
        if self._rows and not self.unanswered and not result.answered:
            self._bad(self._line, ("$.messages", "no assistant message to learn from"))
            return
        self._rows += 1
        self.pairs += result.pair
        self.prompts += result.prompt
        self.unanswered += not result.answered
        for name in result.columns:
            _count(self.annotations, name)
        if result.shape:
            self.converted[result.shape] = self.converted.get(result.shape, 0) + 1
        self._messages += result.messages
        self.image_rows += result.has_images
        characters = sum(map(len, result.texts))
        self._characters += characters
        bucket = max(characters.bit_length() - 1, 0)
        if bucket >= len(self._lengths):
            self._lengths += [0] * (bucket + 1 - len(self._lengths))
        self._lengths[bucket] += 1
        self._tokens.add(result.texts)

    def _bad(self, number: int, problem: tuple[str, str] | LineFault) -> None:
        self._bad_lines += 1
        if isinstance(problem, LineFault) and problem.unread:
            self._unread_line = self._unread_line or number
            for name in problem.unread:
                _count(self._unread, name)
        elif len(self._problems) < PROBLEMS_KEPT:
            self._problems.append(line_problem(number, problem))

    def _unread_problems(self) -> list[LineProblem]:
        """Return one problem for the columns of all rows that are not read, so that one upload names them all."""
        if not self._unread:
            return []
        counted = ", ".join(
            f"{why_unread(name)} in {rows} row{'s' * (rows > 1)}" for name, rows in sorted(self._unread.items())
        )
        names = ",".join(name for name in sorted(self._unread) if name != _OTHERS)
        fix = f"if nothing is to be learnt from them, leave them out: synthctl files upload FILE --drop '{names}'"
        reason = f"columns that are not read: {counted}; {fix}"
        return [LineProblem(line=self._unread_line, path="$", reason=reason[:_REASON_CHARACTERS])]


def _count(counts: dict[str, int], name: str) -> None:
    name = name[:_NAME_CHARACTERS]
    name = name if name in counts or len(counts) < _NAMES_KEPT else _OTHERS
    counts[name] = counts.get(name, 0) + 1

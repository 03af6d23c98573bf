"""Renders each row of a checked file with the chat template of the model that is to be trained on it."""

from __future__ import annotations

import msgspec

from synth.chat.messages import PreferenceRow, TrainingRow
from synth.chat.rendering import Renderer
from synth.chat.template_source import RenderOptions
from synth.chat.training_text import RenderedSequence, pair_conversations, render_row, trim_images
from synth.datasets.check import PROBLEMS_KEPT
from synth.datasets.conversations import canonical_line, line_problem
from synth.errors import UserError
from synth.events import LineProblem

_ROW = msgspec.json.Decoder(TrainingRow)
_PAIR = msgspec.json.Decoder(PreferenceRow)


class RenderCheck:
    """Takes a checked file in pieces; `finish` returns its first bad lines.

    uploaded: whether its rows are as they came, in any shape, and not yet as they are trained on.
    """

    def __init__(self, options: RenderOptions, *, uploaded: bool = False) -> None:
        self.problems: list[LineProblem] = []
        self._options = options
        self._template = Renderer(options.source, sees=options.sees, day=options.day)
        self._uploaded = uploaded
        self._rest = b""
        self._line = 0
        self._rows = 0
        self._trained = 0

    @property
    def full(self) -> bool:
        """Whether enough lines are bad that the rest need not be rendered."""
        return len(self.problems) >= PROBLEMS_KEPT

    def feed(self, piece: bytes) -> None:
        """Render the lines that this piece completes."""
        lines = piece.split(b"\n")
        lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        for line in lines:
            self._check(line)

    def finish(self) -> list[LineProblem]:
        """Return the problems, after the last piece; none for a file that can be trained on."""
        if self._rest:
            self._check(self._rest)
        if self._rows and not self._trained and not self.problems:
            what = "no row of the file has an assistant turn to learn from; expected a turn with a weight above 0"
            self.problems.append(line_problem(1, ("$", what)))
        return self.problems

    def _check(self, line: bytes) -> None:
        self._line += 1
        if self.full or not line or line.isspace():
            return
        self._rows += 1
        try:
            self._trained += self._render(canonical_line(line) if self._uploaded else line)
        except _BadRow as error:
            self.problems.append(line_problem(self._line, (error.path, error.reason)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.problems.append(line_problem(self._line, ("$", f"not a row to train on ({error})")))

    def _render(self, line: bytes) -> bool:
        """Return whether the row has a turn to learn from. Raises `_BadRow`."""
        if self._options.kind == "prompts":
            row = _ROW.decode(line)
            with _in_row("$.messages"):
                self._template.prompt(row.conversation())
            return True
        if self._options.kind == "conversations":
            with _in_row("$.messages"):
                return bool(self._sequences(_ROW.decode(line)))
        sides: list[list[RenderedSequence]] = []
        for name, conversation in zip(("chosen", "rejected"), pair_conversations(_PAIR.decode(line)), strict=True):
            with _in_row(f"$.{name}"):
                sides.append(self._sequences(conversation))
        if sides[0] and sides[0] == sides[1]:
            raise _BadRow("$.rejected", "the model's chat template renders it the same as the chosen side")
        return all(sides)

    def _sequences(self, row: TrainingRow) -> list[RenderedSequence]:
        if self._options.sees:
            row, _ = trim_images(row, self._options.images)
        return render_row(row, self._template)


class _BadRow(Exception):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class _in_row:
    """Turns a `UserError` into a `_BadRow`. path: of a problem that names no field of the row's messages."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            problem = error.problems[0]
            # The messages of a side follow the prompt's, so that an index would name another message.
            inside = self._path == "$.messages" and problem.where.startswith("messages[")
            expected = f"; expected {problem.expected}" if problem.expected else ""
            fix = f"; {problem.fix}" if problem.fix else ""
            raise _BadRow(f"$.{problem.where}" if inside else self._path, problem.what + expected + fix) from error
